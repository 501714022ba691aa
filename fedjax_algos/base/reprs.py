"""Readable texts on one line: of what holds arrays and functions, and of texts from outside."""

from typing import Any

_SHOWN = 4  # arrays of a tree that are named one by one
_GAP = " ... "
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def describe_tree(tree: Any) -> str:
    """A tree in a few words, `x float32[9, 4], y int32[9]`; of more than four arrays, numbers."""
    import jax
    import numpy as np

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if len(leaves) > _SHOWN:
        entries = sum(int(np.prod(np.shape(leaf))) for _, leaf in leaves)
        return f"{len(leaves)} arrays of {entries:,} entries"
    texts = []
    for path, leaf in leaves:
        shown = f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else repr(leaf)
        texts.append(f"{jax.tree_util.keystr(path, simple=True, separator='.')} {shown}".lstrip())
    return ", ".join(texts) or "nothing"


def describe(value: Any, **facts: Any) -> str:
    """`Name(fact=..., fact=...)`, for a class's `__repr__`."""
    listed = ", ".join(f"{name}={fact}" for name, fact in facts.items())
    return f"{type(value).__name__}({listed})"


def si_prefix(value: float) -> tuple[float, str]:
    """The largest SI prefix that does not make a value less than 1: its factor and its letter."""
    power = sum(value >= 1000.0**power for power in range(1, len(_PREFIXES)))
    return 1000.0**power, _PREFIXES[power]


def printable(text: object, longest: int | None = None) -> str:
    r"""A text on one line, in which what is not printable is escaped as by `repr`, such as `\x1b`.

    Of a text with more than `longest` characters the beginning and the end are kept.
    """
    text = str(text)
    if longest is not None and len(text) > longest:
        half = (longest - len(_GAP)) // 2
        text = text[:half] + _GAP + text[-half:]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
