"""Splits contributions, and checks that `contribute` gives each vector of an update one weight.

Only then may a rule put an estimate in place of the updates. The check follows the program of
`contribute` from its arguments to its results. A leaf of a vector may be negated, converted to
other floats, and multiplied or divided by a value that is the same in all entries.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jax.interpreters.partial_eval import dce_jaxpr

from fedjax_algos.core.algorithm import Static

_SAME = ("convert_element_type", "copy")
_CONVERTED = (*_SAME, "broadcast_in_dim", "reshape", "squeeze")
_ENTRYWISE = (*_CONVERTED, "add", "div", "mul", "neg", "sub")
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # parameters that hold the called program


class _Free(NamedTuple):
    """A value that does not depend on the vectors."""

    number: int  # equal for equal computations
    is_one_value: bool  # in all entries


class _Scaled(NamedTuple):
    """A leaf of a vector, multiplied and divided by numbers."""

    leaf: int
    factors: tuple[tuple[Any, ...], ...] = ()  # operations and numbers, sorted


def owners(contribute: Callable[..., Any], vectors: list[Any], rest: Any) -> list[int | None] | str:
    """Finds, for each leaf of a contribution, the leaf of the vectors that it is a multiple of.

    None marks a leaf that does not depend on the vectors. Returns the reason on failure.
    """
    closed = jax.make_jaxpr(contribute)(vectors, rest)
    sizes = [len(jax.tree.leaves(tree)) for tree in vectors]
    owner = [place for place, size in enumerate(sizes) for _ in range(size)]
    numbers: defaultdict[Any, int] = defaultdict(lambda: len(numbers))
    others = range(len(closed.jaxpr.invars) - len(owner))
    free = [_Free(numbers["argument", number], False) for number in others]
    found = _results(closed, [*map(_Scaled, range(len(owner))), *free], numbers)
    if isinstance(found, str):
        return found
    weights = defaultdict[int, list[Any]](list)
    for value in found:
        if isinstance(value, _Scaled):
            weights[value.leaf].append(value.factors)
    for place in range(len(sizes)):
        own = [sorted(weights[leaf]) for leaf, vector in enumerate(owner) if vector == place]
        if own != own[:1] * len(own):
            return "it multiplies the leaves of one vector by different numbers"
    return [value.leaf if isinstance(value, _Scaled) else None for value in found]


class Shares(NamedTuple):
    """A contribution without its vectors: leaves that are free of them, and weights."""

    leaves: list[jax.Array]
    form: Static  # the structure, the result of `owners`, and the form of the vectors

    @property
    def free(self) -> list[jax.Array]:
        """The leaves that no vector is part of."""
        owner = self.form.value[1]
        return [leaf for leaf, of in zip(self.leaves, owner, strict=True) if of is None]

    def times(self, vectors: Sequence[Any]) -> Any:
        """Returns the contribution of some vectors."""
        structure, owner, _ = self.form.value
        factors, pairs = jax.tree.leaves(vectors), zip(self.leaves, owner, strict=True)
        made = [leaf if i is None else leaf * factors[i].astype(leaf.dtype) for leaf, i in pairs]
        return structure.unflatten(made)


def splitter(contribute: Callable[..., Any], like: Any, rest: Any) -> Any:
    """Makes `rest -> (Shares, a float[] weight of each vector)`; the reason if a vector has none.

    `like` has the structure of the vectors and the shapes of their leaves.
    """
    structure, shapes = like
    found = owners(contribute, structure.unflatten(shapes), rest)
    if isinstance(found, str):
        return found
    ones = structure.unflatten(jnp.ones(leaf.shape, leaf.dtype) for leaf in shapes)

    def split(rest):
        made, of_result = jax.tree.flatten(contribute(ones, rest))
        pairs, weights = list(zip(made, found, strict=True)), []
        made = [leaf if of is None else leaf.ravel()[:1].sum() for leaf, of in pairs]
        for tree in structure.unflatten(range(len(shapes))):
            first = next((leaf for leaf in jax.tree.leaves(tree) if shapes[leaf].size), -1)
            own = [leaf for leaf, of in zip(made, found, strict=True) if of == first]
            weights.append(sum(own, jnp.zeros((), jnp.result_type(float))))
        return Shares(made, Static((of_result, tuple(found), like))), weights

    return split


def fields_read(function: Callable[[Any], Any], dispatch: Any) -> list[str]:
    """Returns the fields of a dispatch that the result of `function(dispatch)` depends on."""
    closed = jax.make_jaxpr(function)(dispatch)
    _, used = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    read = jax.tree.unflatten(jax.tree.structure(dispatch), used)
    return [name for name, is_read in zip(read._fields, read, strict=True) if is_read is True]


def _results(closed: Any, arguments: Sequence[Any], numbers: dict[Any, int]) -> list[Any] | str:
    """Returns the values of a program's results, or the reason why one has none."""
    jaxpr = getattr(closed, "jaxpr", closed)
    constants = [_Free(numbers["constant", id(var)], False) for var in jaxpr.constvars]
    names = [*jaxpr.constvars, *jaxpr.invars]
    known: dict[Any, Any] = dict(zip(names, [*constants, *arguments], strict=True))

    def read(var):
        if isinstance(var, Literal):
            return _Free(numbers["literal", str(var.val)], True)
        value = known[var]
        is_number = isinstance(value, _Free) and var.aval.size == 1
        return value._replace(is_one_value=True) if is_number else value

    for eqn in jaxpr.eqns:
        name, inputs = eqn.primitive.name, [read(var) for var in eqn.invars]
        if not any(isinstance(value, _Scaled) for value in inputs):
            found = _free(eqn, name, inputs, numbers)
        elif called := next((eqn.params[key] for key in _CALLS if key in eqn.params), None):
            found = _results(called, inputs, numbers)
        else:
            found = _scaled(eqn, name, inputs)
        if isinstance(found, str):
            return found
        known |= zip(eqn.outvars, found, strict=True)
    return [read(var) for var in jaxpr.outvars]


def _free(eqn, name, inputs, numbers):
    if name in _CONVERTED and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
        return [inputs[0]]
    key = name, str(eqn.params), tuple(value.number for value in inputs)
    same = name in _ENTRYWISE and all(value.is_one_value for value in inputs)
    return [_Free(numbers[key, place], same) for place, _ in enumerate(eqn.outvars)]


def _scaled(eqn, name, inputs):
    """Returns an operation's result on a vector, or why it is not the vector times a number."""
    places = [place for place, value in enumerate(inputs) if isinstance(value, _Scaled)]
    own, others = inputs[places[0]], [value for value in inputs if isinstance(value, _Free)]
    before, after = eqn.invars[places[0]].aval, eqn.outvars[0].aval
    keeps = before.shape == after.shape and jnp.issubdtype(after.dtype, jnp.floating)
    fits = name in (*_SAME, "neg", "mul") or (name == "div" and places == [0])
    if len(places) > 1 or not (keeps and fits):
        return f"it computes {name!r} of the update"
    if not all(value.is_one_value for value in others):
        return "it multiplies the entries of the update by different numbers"
    factor = name, *[value.number for value in others]
    return [own if name in _SAME else _Scaled(own.leaf, tuple(sorted([*own.factors, factor])))]
