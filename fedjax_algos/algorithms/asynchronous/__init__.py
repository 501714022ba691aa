"""Server rules for updates that arrive at different times and may be stale.

Clients train as in FedAvg and upload the delta x - y_i, where x is the model that they received.
The algorithms differ in the weight of a stale update and in what makes a server step: every arrival
(FedAsync), a full buffer (FedBuff), a tier of clients (FedAT) or an arrival group (FedCompass).
`fedasync` holds the weights that they share; `fedjax_algos.asynchrony` decides when clients arrive.
"""
