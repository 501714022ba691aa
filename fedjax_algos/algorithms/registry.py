"""The registry of algorithms, in a module that every algorithm's file can import."""

from fedjax_algos.core import Algorithm
from fedjax_algos.core.registry import Registry

algorithms = Registry[Algorithm]("algorithm", Algorithm)
