"""The check that numbers are what they were once they are on a device."""

from typing import Any

import jax.numpy as jnp
import numpy as np

_ELEMENTS_PER_CHECK = 2**20  # bounds the memory of the search


def check_range(x: np.ndarray, name: str, *, finite: bool) -> None:
    """Checks that numbers are in the range of the type that they have on a device.

    64-bit numbers become 32-bit ones unless x64 is enabled: larger integers would be other ones,
    and larger floats infinite.

    Args:
      x: [examples, ...], integers or floats.
      name: of the array in messages.
      finite: whether NaN and infinity are refused, too.

    Raises:
      ValueError: for a number out of range, with the example that has it.
    """
    kind = np.dtype(x.dtype.newbyteorder("="))
    if kind.itemsize == 8 and jnp.result_type(float) == np.float32:  # without x64
        kind = np.dtype(f"{kind.kind}4")
    elif not finite:
        return
    limits: Any = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    rows = max(1, _ELEMENTS_PER_CHECK * len(x) // max(1, x.size))
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        part = part.reshape(len(part), -1)
        inside = (part >= limits.min) & (part <= limits.max)  # which NaN is not
        if not finite:
            inside |= ~np.isfinite(part)
        if inside.all():
            continue
        row, column = divmod(int(inside.argmin()), part.shape[1])
        value = part[row, column]
        if np.isfinite(value):
            raise ValueError(
                f"{name} has {value} in example {start + row}, which is out of range of {kind}; "
                "scale it, or enable x64: jax.config.update('jax_enable_x64', True)"
            )
        raise ValueError(f"{name} has NaN or infinity in example {start + row}; clean it first")
