"""Algorithms that average the clients' updates, some with another average or local loss.

The server keeps the model x and, for some, the state of a server optimiser. Clients start from x,
keep nothing between rounds, and upload the delta x - y_i. The algorithms differ in the local
objective (FedProx, FedMAX), in the weights or the lengths of the deltas (FedNova, FedLGA,
q-FedAvg), in the rule of the server step (FedAvgM, FedAdam, FedYogi, FedAdagrad, FedRMSProp), or in
the data (centralised).
"""
