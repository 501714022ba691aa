"""Clients descend along the gradient at a perturbed model, so that they find flat minima.

`fedsam` holds the perturbation, a correction of the gradient that other algorithms take as `first`.
"""
