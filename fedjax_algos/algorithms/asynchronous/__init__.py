"""Server rules for updates that arrive at different times, and may be stale.

Clients train as in FedAvg and upload x - y_i, where x is the model that they received. Members
differ in the weight of a stale update and in what the server steps on: every arrival (FedAsync), a
full buffer (FedBuff), a tier of clients (FedAT) or an arrival group (FedCompass). `staleness` holds
the weights that they share. When clients arrive is decided in `fedjax_algos.asynchrony`.
"""
