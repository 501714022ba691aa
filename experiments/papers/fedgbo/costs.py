"""What the programs of this folder share: the paper's four tasks, and what a client costs."""

import functools
from typing import NamedTuple

import jax
import numpy as np
from paper_measures.costs import paper_macs

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis.costs import ClientMemory
from fedjax_algos.core import Problem
from fedjax_algos.engine.exchange import Transfer
from fedjax_algos.models import models
from fedjax_algos.participation import Cohorts

OPTIMIZERS = ("rmsprop", "sgdm", "adam")


class Task(NamedTuple):
    """A task of the paper's Table III: its model, and the work of a round."""

    model: str
    shape: tuple[int, ...]
    classes: int
    cohort: int
    batch_size: int
    examples: int  # the mean of a client

    def problem(self) -> Problem:
        """The paper's model."""
        return models[self.model](self.shape, self.classes)

    def params(self) -> int:
        """|x|."""
        return _sizes(self)[0]

    def macs(self) -> int:
        """Multiply-adds of one example's forward pass, counted as the paper's library does."""
        return _sizes(self)[1]


@functools.cache
def _sizes(task):
    problem = task.problem()
    params = jax.eval_shape(problem.init, jax.random.key(0)).params
    kind = np.int32 if task.model == "gru" else np.float32
    macs = paper_macs(problem, {"x": jax.ShapeDtypeStruct(task.shape, kind)})
    return sum(leaf.size for leaf in jax.tree.leaves(params)), macs


TASKS = {
    "CIFAR100": Task("cnn_fedgbo", (32, 32, 3), 100, 5, 32, 100),
    "Sent140": Task("linear", (5000,), 2, 22, 8, 15),
    "FEMNIST": Task("cnn_fedgbo", (28, 28, 1), 62, 30, 32, 170),
    "Shakespeare": Task("gru", (80,), 79, 7, 32, 5573),
}


class Counted(NamedTuple):
    """What a client of a task costs in a round, counted from the library's code."""

    transfer: Transfer
    memory: ClientMemory
    total: float  # operations
    step: float  # operations of one more local step


def count(task: Task, algorithm: str, *, steps: int = 10, **options: str) -> Counted:
    """The costs of an algorithm on a task, with three clients.

    Args:
      task: the model and the sizes.
      algorithm: its name.
      steps: K.
      **options: of the algorithm.
    """
    number = 3 * task.examples
    kind = np.int32 if task.model == "gru" else np.float32
    examples = {"x": np.zeros((number, *task.shape), kind), "y": np.zeros(number, np.int32)}
    data = fa.federate(examples, fa.Partition.of(np.array_split(np.arange(number), 3)))
    local = fa.Local(task.batch_size, 0.1, steps=steps)
    made = algorithms[algorithm](task.problem(), local, **options)
    engine = fa.make_engine(made)
    state = engine.init(0, fa.Population(3, 1, 1))
    cohorts = Cohorts(data.counts(), local, cohort_size=1, seed=0)
    dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
    flops = fa.count_flops(made, state, data)
    total = flops.of(dispatches)[0]
    more = flops.of(dispatches._replace(num_steps=dispatches.num_steps + 1))[0]
    transfer = engine.transfer(state, data, dispatches)
    return Counted(transfer, fa.count_memory(made, state, data), total, more - total)
