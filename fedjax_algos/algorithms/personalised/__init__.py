"""Algorithms that keep a model for each client, besides or instead of the global one.

`Algorithm.personal` makes a client's own model from the server state and the client's row. A client
keeps a whole model (Ditto, pFedMe, APFL), a part of one (FedRep, FedBN), or the number of a shared
model (IFCA). In Per-FedAvg it makes its model from the global one by a local step.
"""
