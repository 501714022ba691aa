"""The floating-point operations of single jaxpr equations, and their effect on known integers."""

import math
import operator
from collections.abc import Callable

import numpy as np
from jax.extend.core import JaxprEqn


def _output_size(eqn):
    return sum(var.aval.size for var in eqn.outvars)


def _power(eqn):
    return 0 if eqn.params["y"] == 1 else _output_size(eqn)


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
    # axes in the order batch (of a kernel: features out), features (in), and then the space
    image_axes, kernel_axes, output_axes = params["dimension_numbers"]
    flops = 2 * outputs[output_axes[0]] * outputs[output_axes[1]] * kernel[kernel_axes[1]]
    for axis, (padding, _) in enumerate(params["padding"]):
        dilation = params["lhs_dilation"][axis]
        window = np.arange(kernel[kernel_axes[2 + axis]]) * params["rhs_dilation"][axis]
        starts = np.arange(outputs[output_axes[2 + axis]]) * params["window_strides"][axis]
        positions = starts[:, None] + window - padding
        last = (images[image_axes[2 + axis]] - 1) * dilation
        inside = (positions >= 0) & (positions <= last)
        flops *= int((inside & (positions % dilation == 0)).sum())
    return flops


def _window_reduction(eqn):
    return _output_size(eqn) * math.prod(eqn.params["window_dimensions"])


def _update_size(eqn):
    return eqn.invars[-1].aval.size


_ELEMENTWISE = (
    "abs acos acosh add add_any asin asinh atan atan2 atanh cbrt ceil clamp cos cosh digamma div "
    "erf erf_inv erfc exp exp2 expm1 floor lgamma log log1p logistic max min mul neg "
    "pow rem round rsqrt sign sin sinh sqrt square sub tan tanh"
)
_CUMULATIVE = "cumlogsumexp cummax cummin cumprod cumsum"
_REDUCTIONS = "reduce_max reduce_min reduce_prod reduce_sum"
RULES: dict[str, Callable[[JaxprEqn], float]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _output_size),
    **dict.fromkeys(_CUMULATIVE.split(), _input_size),
    **dict.fromkeys(_REDUCTIONS.split(), _reduction),
    "integer_pow": _power,
    "one_minus_square": lambda eqn: 2 * _output_size(eqn),  # in newer jax, the derivative of tanh
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "reduce_window_sum": _window_reduction,
    "reduce_window_max": _window_reduction,
    "reduce_window_min": _window_reduction,
    "select_and_scatter_add": _input_size,
    "scatter-add": _update_size,
    "scatter-mul": _update_size,
}
_FREE = (
    "bitcast_convert_type broadcast_in_dim concatenate convert_element_type copy device_put "
    "dynamic_slice dynamic_update_slice empty2 gather imag iota name nextafter pad real "
    "optimization_barrier reduce_precision reshape rev scatter scatter-max scatter-min select_n "
    "select_and_gather_add sharding_constraint slice sort split squeeze stack stop_gradient top_k "
    "transpose unstack"
)
FREE = frozenset(_FREE.split())
_CALLS = "call checkpoint closed_call core_call custom_jvp_call custom_vjp_call jit pjit remat2"
CALLS = frozenset(_CALLS.split())
_OPERATORS = "abs add eq ge gt le lt mul ne neg sub"  # Python has them under these names
INTEGERS: dict[str, Callable] = {
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


def scan_inputs(eqn: JaxprEqn) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carried, _ = eqn.params["ft_in"].unpack()  # trees of them, in newer jax
    return len(list(consts)), len(list(carried))
