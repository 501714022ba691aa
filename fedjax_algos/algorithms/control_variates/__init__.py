"""Algorithms whose clients correct each local gradient by an estimate of their own drift.

Each client keeps a row of state between rounds: a control variate (SCAFFOLD), the gradient of a
dynamic regulariser (FedDyn) or a bias estimate (AdaBest). The server keeps the mean or the sum of
the rows, so a client that was sampled long ago has an old row.
"""
