"""Algorithms whose clients use the server's optimiser statistics in their local steps.

The server keeps the statistics s of SGDm, RMSProp or Adam beside x, and broadcasts both. Members
differ in whether s stays fixed in a round (FedGBO, MimeLite, Mime) or moves on each client (MFL),
and in what moves it on the server: the inverse of the mean step or uploaded gradients (FedGBO), or
full gradients at x (MimeLite, Mime). `biased_optimizers` holds the three update rules.
"""
