"""Counts of functions and of algorithms on a perceptron."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from helpers import stored

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis import count_flops
from fedjax_algos.analysis.flops import count
from fedjax_algos.core import Dispatch
from fedjax_algos.models import models

LOCAL = fa.Local(8, 0.1, steps=3)


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def operations(function, *inputs):
    """The operations of a function whose loops have fixed lengths."""
    found = count(jax.make_jaxpr(function)(*inputs), [None] * len(jax.tree.leaves(inputs)))
    assert not found.loops
    return found.fixed


def dispatches_of(num_steps, num_examples):
    """Dispatches with these numbers, which are broadcast."""
    steps, examples = np.broadcast_arrays(np.int32(num_steps), np.int32(num_examples))
    blank, rates = np.zeros_like(steps), np.ones(steps.shape, np.float32)
    return Dispatch(blank, blank, blank, steps, steps, examples, rates, rates, blank)


@functools.cache
def wide():
    """A perceptron, and 4 clients with 100 images each, as floats, which memory would count."""
    problem = models["mlp"]((28, 28), 10, hidden=400)
    client = {"x": np.zeros((100, 28, 28), np.float32), "y": np.zeros(100, np.int32)}
    return problem, stored([client] * 4)


def state_of(algorithm, data):
    """The shapes of an engine's first state: nothing is computed."""
    population = fa.Population(data.num_clients, 2, int(data.counts().sum()))
    init = functools.partial(fa.make_engine(algorithm).init, 0, population)
    return jax.eval_shape(init)._replace(seed=0)


@functools.cache
def on_perceptron(name, local=LOCAL, **hyperparameters):
    """An algorithm, the shapes of its first state, and the examples; one trace serves all tests."""
    problem, data = wide()
    hyperparameters |= {"tau": 2} if name == "ghbm" else {}
    algorithm = algorithms[name](problem, local, **hyperparameters)
    return algorithm, state_of(algorithm, data), data


def loops_of(name, local=LOCAL, **hyperparameters):
    """The operations in each loop of an algorithm on the perceptron, for one pass of it."""
    flops = count_flops(*on_perceptron(name, local, **hyperparameters))
    return [loop.body.fixed for loop in flops.loops]
