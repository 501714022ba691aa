"""Clients step with an adaptive optimiser whose state outlives the local update.

The client keeps the state (DiLoCo), or the server averages the clients' last moments and sends the
mean to the next cohort (FedAdamW, FedLADA, FedMuon).
"""
