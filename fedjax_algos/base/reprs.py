"""Formats objects with arrays and functions, and texts from outside, as one readable line."""

from typing import Any

_SHOWN = 4  # arrays of a tree that are listed one by one
_GAP = " ... "
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def describe_tree(tree: Any) -> str:
    """Describes a tree, `x float32[9, 4], y int32[9]`; counts more than four arrays."""
    import jax
    import numpy as np

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if len(leaves) > _SHOWN:
        entries = sum(int(np.prod(np.shape(leaf))) for _, leaf in leaves)
        return f"{len(leaves)} arrays of {entries:,} entries"
    texts = []
    for path, leaf in leaves:
        text = f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else repr(leaf)
        texts.append(f"{jax.tree_util.keystr(path, simple=True, separator='.')} {text}".lstrip())
    return ", ".join(texts) or "nothing"


def describe(value: Any, **facts: Any) -> str:
    """Returns `Name(fact=..., fact=...)`, for a class's `__repr__`."""
    listed = ", ".join(f"{name}={fact}" for name, fact in facts.items())
    return f"{type(value).__name__}({listed})"


def si_prefix(value: float) -> tuple[float, str]:
    """Returns the factor and letter of the largest SI prefix that keeps a value at least 1."""
    power = sum(value >= 1000.0**power for power in range(1, len(_PREFIXES)))
    return 1000.0**power, _PREFIXES[power]


def printable(text: object, longest: int | None = None) -> str:
    r"""Puts a text on one line and escapes what is not printable as `repr` does, such as `\x1b`.

    If a text has more than `longest` characters, its beginning and its end are kept.
    """
    text = str(text)
    if longest is not None and len(text) > longest:
        half = (longest - len(_GAP)) // 2
        text = text[:half] + _GAP + text[-half:]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
