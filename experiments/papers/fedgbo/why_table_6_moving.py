"""Table VI: operations of a step with moving statistics, with v tracked by g and by its square.

COMMAND   python experiments/papers/claims.py run fedgbo/why_table_6_moving
EXPECTED  8, 5 and 11 for RMSProp, SGDm and Adam tracked by g; 9, 5 and 12 by its square
TIME      a few seconds

A step of a thousand parameters by the paper's Table II, first with the gradient in the tracking of
v, as printed there, and then with its square, as in the released code.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from costs import OPTIMIZERS

from fedjax_algos.analysis.flops import count

RATE, BETA, EPS, SIZE = 0.1, 0.9, 1e-3, 1000


def step_of(optimizer: str, tracked: Callable) -> Callable:
    """MFL's local step, from (y, m, v, g) to the new y, m and v.

    Args:
      optimizer: "rmsprop", "sgdm" or "adam".
      tracked: of the gradient: what the tracking of v averages.
    """

    def step(y, m, v, g):
        if optimizer != "rmsprop":
            m = BETA * m + (1 - BETA) * g
        if optimizer != "sgdm":
            v = BETA * v + (1 - BETA) * tracked(g)
        direction = RATE * (g if optimizer == "rmsprop" else m)
        return y - (direction if optimizer == "sgdm" else direction / (jnp.sqrt(v) + EPS)), m, v

    return step


def rows(run) -> Iterator[tuple]:
    """The rows of the explanation."""
    vectors = [jax.ShapeDtypeStruct((SIZE,), jnp.float32)] * 4
    for case, tracked in {"by g": lambda g: g, "by its square": lambda g: g * g}.items():
        for name in OPTIMIZERS:
            traced = jax.make_jaxpr(step_of(name, tracked))(*vectors)
            yield case, name, "operations", 0, f"{count(traced, [None] * 4).fixed / SIZE:g}"
