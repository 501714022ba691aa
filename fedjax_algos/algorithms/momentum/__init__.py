"""Algorithms that add momentum over past rounds to every local step.

The momentum is a difference of models: of the last round (FedCM, FedADC), of the last tau rounds
(GHBM), or since the client itself was last sampled (LocalGHBM, FedHBM). In the first two forms the
server broadcasts it; in the last, each client computes it from what it kept.
"""
