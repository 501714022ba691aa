"""Algorithms that add momentum over past rounds to every local step.

The momentum is a difference of models: over the last round (FedCM, FedADC), over the last tau
rounds (GHBM), or since the client's own last dispatch (LocalGHBM, FedHBM). In the first two forms
the server broadcasts it; in the last, each client computes it from its own state.
"""
