"""The registry of algorithms, where each of their files can import it."""

from fedjax_algos.core.registry import Registry

algorithms = Registry("algorithm")
