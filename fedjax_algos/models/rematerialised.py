"""Rematerialisation: the gradient computes most values of a model again, instead of keeping them.

The forward pass is a list of operations (a jaxpr). It is cut into parts where few bytes are alive.
The gradient keeps what passes between parts, and computes the inside of a part again when needed.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal

from fedjax_algos.core import Problem
from fedjax_algos.core.trees import is_key, tree_bytes

_NUMBERS_OF_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_UNSEEN = {2: 0x7FDE, 4: 0x7FC0DEAD, 8: 0x7FF8DEAD00C0FFEE}  # bits of a NaN, by bytes of a float


def rematerialise(problem: Problem) -> Problem:
    """Returns the problem with a gradient in training that needs less memory and more time.

    `apply` is cut into parts, so that few bytes pass between parts and few are made inside the
    largest one. The gradient keeps only what passes between parts, and computes each part a second
    time. Outputs and gradients are the same up to rounding, also with dropout. A loop, such as a
    recurrent layer, is not cut. Forward mode (`jax.jvp`) is not possible.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost", https://arxiv.org/abs/1604.06174.
    `jax.checkpoint` does not save memory on a CPU: XLA removes the barriers that it relies on, and
    computes all parts again before it needs the first. Here each part waits for its cotangents.

    Args:
      problem: the problem that is learned.
    """

    def apply(model, batch, key, training):
        if not training:
            return problem.apply(model, batch, key, training)
        given, structure = jax.tree.flatten((model, batch, key))

        def flat(*leaves):
            return problem.apply(*structure.unflatten(leaves), training)

        closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*given)
        jaxpr = closed.jaxpr
        values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values |= zip(jaxpr.invars, given, strict=True)
        for part in _parts(jaxpr):
            made = _computed_twice(part)([values[var] for var in part.invars])
            values |= zip(part.outvars, made, strict=True)
        results = [v.val if isinstance(v, Literal) else values[v] for v in jaxpr.outvars]
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return problem._replace(apply=apply)


def _parts(jaxpr: Jaxpr) -> list[Jaxpr]:
    """Cuts the operations into parts; each returns what later parts or the results need."""
    parts, later = [], _variables(jaxpr.outvars)
    for start, end in reversed([*itertools.pairwise([0, *_cuts(jaxpr), len(jaxpr.eqns)])]):
        eqns = jaxpr.eqns[start:end]
        made = dict.fromkeys(var for eqn in eqns for var in eqn.outvars)
        read = _variables(atom for eqn in eqns for atom in eqn.invars)
        read = {var: None for var in read if var not in made}
        outvars = [var for var in made if var in later]
        parts.append(jaxpr.replace(constvars=[], invars=[*read], outvars=outvars, eqns=eqns))
        later |= read
    return parts[::-1]


def _cuts(jaxpr: Jaxpr) -> list[int]:
    """Chooses cuts: minimises the bytes alive at all cuts plus twice those of the largest part."""
    number = len(jaxpr.eqns)
    last = {var: n for n, eqn in enumerate(jaxpr.eqns) for var in _variables(eqn.invars)}
    last |= dict.fromkeys(_variables(jaxpr.outvars), number)
    alive, made = np.zeros(number + 2), np.zeros(number + 1)
    for index, eqn in enumerate(jaxpr.eqns):
        for var in eqn.outvars:
            if var in last:
                size = tree_bytes(var.aval)
                alive[index + 1] += size
                alive[last[var] + 1] -= size
                made[index + 1] += size
    largest_operation = made.max()
    alive, made = np.cumsum(alive), np.cumsum(made)  # before each operation
    best: list[int] = []
    least = np.inf
    for parts in _NUMBERS_OF_PARTS if number else ():
        limit = max(made[-1] / parts, largest_operation)  # of a part
        kept, start = np.zeros(number + 1), np.zeros(number + 1, int)
        for end in range(1, number + 1):  # the best parts up to there
            first = min(int(np.searchsorted(made, made[end] - limit)), end - 1)
            start[end] = first + int(np.argmin(kept[first:end]))
            kept[end] = kept[start[end]] + alive[end] * (end < number)
        if kept[-1] + 2 * limit < least:
            best, least, cut = [], kept[-1] + 2 * limit, int(start[-1])
            while cut:
                best, cut = [cut, *best], int(start[cut])
    return best


def _computed_twice(part: Jaxpr) -> Callable[[list], list]:
    """Returns the part as a function of its inputs; its gradient keeps only these."""

    def compute(read):
        return jax.core.eval_jaxpr(part, [], *read)

    def backward(read, cotangents):
        # always true, but the compiler cannot know it before it has the cotangents
        arrived = jnp.bool_(True)
        for each in cotangents:
            if each.dtype != jax.dtypes.float0 and each.size:
                arrived &= _unlike_unseen(each.reshape(-1)[0])
        # also params, because XLA on a CPU would broadcast all biases before anything else
        read = [x if is_key(x) else jnp.where(arrived, x, jnp.zeros_like(x)) for x in read]
        floats = {n: x for n, x in enumerate(read) if jnp.issubdtype(x.dtype, jnp.floating)}

        def of_floats(given):
            return compute([given.get(n, x) for n, x in enumerate(read)])

        _, pull_back = jax.vjp(of_floats, floats)
        (gradients,) = pull_back(cotangents)
        return ([gradients.get(n) for n in range(len(read))],)

    twice = jax.custom_vjp(compute)
    twice.defvjp(lambda read: (compute(read), read), backward)
    return twice


def _unlike_unseen(number: jax.Array) -> jax.Array:
    """Returns whether a float differs from a NaN that no operation produces, bool[]."""
    size = number.dtype.itemsize
    bits = jnp.dtype(f"uint{8 * size}")
    return jax.lax.bitcast_convert_type(number, bits) != np.array(_UNSEEN[size], bits)


def _variables(atoms: Iterable[Any]) -> dict[Any, None]:
    return dict.fromkeys(atom for atom in atoms if not isinstance(atom, Literal))
