"""Algorithms whose clients use the server's optimiser statistics in their local steps.

The server keeps the statistics s of SGDm, RMSProp or Adam beside x, and broadcasts both. The
algorithms differ in whether s stays fixed in a round (FedGBO, MimeLite, Mime) or moves on each
client (MFL), and in how the server updates it: from the mean delta by an inverse, or from uploaded
mean gradients (FedGBO); from gradients at x (MimeLite, Mime); or by averaging the clients'
statistics (MFL). `biased_optimizers` holds the three update rules.
"""
