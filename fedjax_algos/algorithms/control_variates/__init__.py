"""Algorithms whose clients correct each local gradient by an estimate of their own drift.

Each client keeps state between rounds: a control variate c_i (SCAFFOLD), the gradient h_i of a
dynamic regulariser (FedDyn) or a bias estimate h_i (AdaBest). The server keeps the mean of all c_i
or h_i (SCAFFOLD, FedDyn) or estimates it from its last two means (AdaBest). The state of a client
is from its last dispatch.
"""
