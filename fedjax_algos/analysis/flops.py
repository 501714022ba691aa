"""Counts the floating-point operations of a traced function by a walk through its jaxpr.

- A multiply-add of a matrix product or a convolution: 2. Where a convolution's kernel meets padding
  or the holes of a dilation: 0.
- Elementwise arithmetic on floats (a root or an exponential like a sum): 1 for each output element.
- A reduction of floats, also a cumulative one: 1 for each input element.
- Comparisons, selections, data movement, casts, random bits, and arithmetic on integers: 0.
- Results that are never used: 0, because the compiler removes them.

A loop counts as its body times its length, a conditional as its most expensive branch, and
`platform_dependent` as its default, on every platform. XLA's own `cost_analysis` counts a loop's
body once, whatever the length.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.interpreters.partial_eval import dce_jaxpr

from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Dispatch
from fedjax_algos.core.types import with_arrays
from fedjax_algos.models.layers import native

DispatchInteger = Callable[[Dispatch], Any]  # from dispatches of NumPy arrays [...] to int[...]


class UncountedError(ValueError):
    """The trace of a computation has operations that cannot be counted."""


class Flops(NamedTuple):
    """The operations of a local update.

    Attributes:
      fixed: operations outside of loops whose lengths depend on the dispatch.
      loops: those loops, with the operations of the body and the length for a dispatch.
    """

    fixed: float
    loops: tuple["Loop", ...] = ()

    def of(self, dispatches: Dispatch) -> np.ndarray:
        """Returns the operations of each dispatch's local update, float64[...].

        Args:
          dispatches: dispatches with leaves of NumPy arrays [...].
        """
        dispatches = with_arrays(dispatches)
        flops = np.full(np.shape(dispatches.num_steps), self.fixed, np.float64)
        for loop in self.loops:
            flops += np.maximum(loop.length(dispatches), 0) * loop.body.of(dispatches)
        return flops

    def __repr__(self) -> str:
        loops = {"loops": [loop.body for loop in self.loops]} if self.loops else {}
        return describe(self, fixed=f"{self.fixed:,.0f}", **loops)


class Loop(NamedTuple):
    """A loop whose body runs `length(dispatches)` times."""

    length: DispatchInteger
    body: Flops


def total(parts: Sequence[Flops]) -> Flops:
    """Adds several counts."""
    return Flops(sum(p.fixed for p in parts), tuple(loop for p in parts for loop in p.loops))


def _output_size(eqn):
    return sum(var.aval.size for var in eqn.outvars)


def _input_size(eqn):
    return eqn.invars[0].aval.size


def _reduction(eqn):
    size = _input_size(eqn)
    return 0 if size == _output_size(eqn) else size  # 0 over axes of length 1


def _product(eqn):
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return 2 * _output_size(eqn) * math.prod(shape[axis] for axis in contracted)


def _convolution(eqn):
    images, kernel, outputs = (v.aval.shape for v in (*eqn.invars, *eqn.outvars))
    params = eqn.params
    # axes in the order batch (features out for a kernel), features (in), then the spatial axes
    image_axes, kernel_axes, output_axes = params["dimension_numbers"]
    flops = 2 * outputs[output_axes[0]] * outputs[output_axes[1]] * kernel[kernel_axes[1]]
    for axis, (padding, _) in enumerate(params["padding"]):
        dilation = params["lhs_dilation"][axis]
        window = np.arange(kernel[kernel_axes[2 + axis]]) * params["rhs_dilation"][axis]
        starts = np.arange(outputs[output_axes[2 + axis]]) * params["window_strides"][axis]
        positions = starts[:, None] + window - padding
        inside = (positions >= 0) & (positions <= (images[image_axes[2 + axis]] - 1) * dilation)
        flops *= int((inside & (positions % dilation == 0)).sum())
    return flops


def _qr(eqn):
    *batch, m, n = eqn.invars[0].aval.shape
    high, low = max(m, n), min(m, n)
    return math.prod(batch) * 4 * low**2 * (high - low / 3)  # of both Q and R


_ELEMENTWISE = (
    "abs acos acosh add add_any asin asinh atan atan2 atanh cbrt ceil clamp cos cosh digamma div "
    "erf erf_inv erfc exp exp2 expm1 floor lgamma log log1p logistic max min mul neg "
    "pow rem round rsqrt sign sin sinh sqrt square sub tan tanh"
)
_CUMULATIVE = "cumlogsumexp cummax cummin cumprod cumsum"
_REDUCTIONS = "reduce_max reduce_min reduce_prod reduce_sum"
_RULES: dict[str, Callable[..., float]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _output_size),
    **dict.fromkeys(_CUMULATIVE.split(), _input_size),
    **dict.fromkeys(_REDUCTIONS.split(), _reduction),
    "integer_pow": lambda eqn: _output_size(eqn) * (eqn.params["y"] != 1),
    "one_minus_square": lambda eqn: 2 * _output_size(eqn),  # in newer jax, the derivative of tanh
    "dot_general": _product,
    native.layer_p.name: lambda eqn: native.flops(
        [var.aval.shape for var in (*eqn.invars, *eqn.outvars)], **eqn.params
    ),
    "conv_general_dilated": _convolution,
    **dict.fromkeys(
        ("reduce_window_sum", "reduce_window_max", "reduce_window_min"),
        lambda eqn: _output_size(eqn) * math.prod(eqn.params["window_dimensions"]),
    ),
    "select_and_scatter_add": _input_size,
    "qr": _qr,
    **dict.fromkeys(("scatter-add", "scatter-mul"), lambda eqn: eqn.invars[-1].aval.size),
}
_MOVES = (
    "bitcast_convert_type broadcast_in_dim concatenate convert_element_type copy device_put "
    "dynamic_slice dynamic_update_slice empty2 gather imag iota name nextafter pad real "
    "optimization_barrier reduce_precision reshape rev scatter scatter-max scatter-min select_n "
    "select_and_gather_add sharding_constraint slice sort split squeeze stack stop_gradient top_k "
    "transpose unstack"
)
_FREE = frozenset(_MOVES.split())
_WRAPPERS = "call checkpoint closed_call core_call custom_jvp_call custom_vjp_call jit pjit remat2"
CALLS = frozenset(_WRAPPERS.split())
_OPERATORS = "abs add eq ge gt le lt mul ne neg sub"  # Python has them under these names
_INTEGERS: dict[str, Callable] = {
    **{name: getattr(operator, name) for name in _OPERATORS.split()},
    "sign": np.sign,
    "max": np.maximum,
    "min": np.minimum,
    "div": lambda a, b: (a - np.fmod(a, b)) // b,  # rounds towards 0
    "rem": np.fmod,
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "select_n": lambda which, *cases: np.choose(which, cases),
    "convert_element_type": lambda x: np.add(x, 0),  # a truth value becomes 0 or 1
    "stop_gradient": lambda x: x,
    "copy": lambda x: x,
}


def count(closed: ClosedJaxpr, known: Sequence[DispatchInteger | None]) -> Flops:
    """Counts the operations of a trace; `known` gives its first inputs as integers, or None."""
    live, _ = dce_jaxpr(closed.jaxpr, True, instantiate=True)
    return _walk(ClosedJaxpr(live, closed.consts), known)[0]


def _walk(closed, arguments):
    """Returns (operations, outputs that are known integers), given the known first inputs."""
    jaxpr = closed.jaxpr
    consts = zip(jaxpr.constvars, closed.consts, strict=True)
    known = dict(zip(jaxpr.invars, arguments, strict=False))
    known |= {var: _constant(var.aval, value) for var, value in consts}
    used, parts = used_by(jaxpr), []

    def integer_of(atom):
        return _constant(atom.aval, atom.val) if isinstance(atom, Literal) else known.get(atom)

    for eqn in jaxpr.eqns:
        part, results = _equation(eqn, [integer_of(atom) for atom in eqn.invars], used)
        parts.append(part)
        known |= dict(zip(eqn.outvars, results, strict=False))
    return total(parts), [integer_of(atom) for atom in jaxpr.outvars]


def _equation(eqn, arguments, used):
    name, outputs = eqn.primitive.name, [var.aval for var in eqn.outvars]
    if name in CALLS:
        return _walk(called(eqn), arguments)
    if name in _CONTROL:
        return _CONTROL[name](eqn, arguments, used), []
    if name in _INTEGERS and _is_integer(outputs[0]) and None not in arguments:
        rule = _INTEGERS[name]
        return Flops(0), [lambda dispatches: rule(*(value(dispatches) for value in arguments))]
    if name in _FREE or not any(map(is_float, outputs)):
        return Flops(0), []
    if name not in _RULES:
        found = f"the operation {name!r} at {_source_line(eqn)} has no rule for counting it"
        raise UncountedError(f"{found}; add one to fedjax_algos/analysis/flops.py")
    return Flops(float(_RULES[name](eqn))), []


def _scan(eqn, arguments, used):
    body, length = eqn.params["jaxpr"], eqn.params["length"]
    part, _ = _walk(body, arguments[: scan_inputs(eqn)[0]])
    if not part.loops:
        return Flops(length * part.fixed)
    return Flops(0, (Loop(lambda dispatches: length, part),))


def _cond(eqn, arguments, used):
    branches, platforms = eqn.params["branches"], eqn.params.get("branches_platforms")
    if platforms and platforms[-1] is None:
        branches = branches[-1:]
    parts = [_walk(branch, arguments[1:])[0] for branch in branches]
    if any(part.loops for part in parts):
        problem = "has a loop whose length depends on the dispatch; take the loop out of it"
        raise UncountedError(f"the conditional at {_source_line(eqn)} {problem}")
    return max(parts)


def _while(eqn, arguments, used):
    """Counts a loop between known integers; a loop without floats, as in `permute`, counts 0."""
    body, _ = live_body(eqn, used)
    first = eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
    consts = arguments[eqn.params["cond_nconsts"] : first]
    closed = ClosedJaxpr(body, eqn.params["body_jaxpr"].consts)
    part, _ = _walk(closed, consts)
    if part == Flops(0):
        return part
    bounds = _bounds(eqn)
    start, stop = (arguments[first + index] for index in bounds) if bounds else (None, None)
    if start is None or stop is None:
        problem = "computes with floats, and its length does not follow from the dispatch"
        fix = "use fori_loop up to an integer computed from the dispatch's"
        raise UncountedError(f"the loop at {_source_line(eqn)} {problem}; {fix}")
    return Flops(0, (Loop(lambda dispatches: stop(dispatches) - start(dispatches), part),))


_CONTROL = {"scan": _scan, "cond": _cond, "while": _while}


def _bounds(eqn):
    """Returns the positions of counter and bound in a loop `while counter < bound`, or None."""
    test, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    carried = body.invars[eqn.params["body_nconsts"] :]
    if len(test.eqns) != 1 or test.eqns[0].primitive.name != "lt" or eqn.params["cond_nconsts"]:
        return None
    compared = test.eqns[0].invars
    if any(isinstance(atom, Literal) or atom not in test.invars for atom in compared):
        return None
    counter, bound = map(test.invars.index, compared)
    increments = any(
        each.primitive.name == "add"
        and each.invars[0] is carried[counter]
        and getattr(each.invars[1], "val", None) == 1
        for each in body.eqns
        if body.outvars[counter] in each.outvars
    )
    return (counter, bound) if increments and body.outvars[bound] is carried[bound] else None


def live_body(eqn, used):
    """Removes unused operations from a loop's body; returns (body, which carries are used)."""
    test, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    tested = used_by(test)
    tests = test.invars[eqn.params["cond_nconsts"] :]
    live = [out in used or var in tested for out, var in zip(eqn.outvars, tests, strict=True)]
    before = None
    while live != before:
        before, needed = live, dce_jaxpr(body, live)[1][eqn.params["body_nconsts"] :]
        live = [a or b for a, b in zip(live, needed, strict=True)]
    return dce_jaxpr(body, live, instantiate=True)[0], live


def called(eqn):
    """Returns the function that an equation calls."""
    inner = next(p for p in eqn.params.values() if isinstance(p, ClosedJaxpr | Jaxpr))
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


def used_by(jaxpr):
    """Returns the variables that the equations of a jaxpr read, and its outputs."""
    atoms = [*jaxpr.outvars, *(atom for eqn in jaxpr.eqns for atom in eqn.invars)]
    return {atom for atom in atoms if not isinstance(atom, Literal)}


def _constant(aval, value):
    return (lambda dispatches: np.asarray(value)) if _is_integer(aval) else None


def _is_integer(aval):
    """Returns True for a scalar integer or truth value."""
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", np.float32)
    return shape == () and any(jnp.issubdtype(dtype, kind) for kind in (jnp.integer, jnp.bool_))


def is_float(aval):
    """Returns True for an array of floats."""
    return jnp.issubdtype(getattr(aval, "dtype", np.int32), jnp.inexact)


def _source_line(eqn):
    return source_info_util.summarize(eqn.source_info) or "an unknown line"


def scan_inputs(eqn: JaxprEqn) -> tuple[int, int]:
    """Returns the number of a scan's constant inputs, and of its carried ones."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carried, _ = eqn.params["ft_in"].unpack()  # trees, in newer jax
    return len(list(consts)), len(list(carried))
