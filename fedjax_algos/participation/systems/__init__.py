"""System models of the virtual clock: simulated ones, given times, and FedScale's devices."""
