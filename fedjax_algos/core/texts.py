"""Texts from outside, such as names of files: no control codes, no markup, and a bounded length.

Also the prefixes of units.
"""

_GAP = " ... "
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def si_prefix(value: float) -> tuple[float, str]:
    """The largest SI prefix that does not make a value below 1: its factor and its letter."""
    power = sum(value >= 1000.0**power for power in range(1, len(_PREFIXES)))
    return 1000.0**power, _PREFIXES[power]


def printable(text: object, longest: int | None = None) -> str:
    r"""A text on one line, in which characters that are not printable are escapes.

    These are control characters, line breaks, characters that change the direction of a text, and
    surrogates. They are escaped as `repr` does it, such as `\x1b`; all others are kept.

    Args:
      text: or an object, of which its text is taken.
      longest: number of characters, of which a longer text keeps the beginning and the end; None
        for any number.
    """
    text = str(text)
    if longest is not None and len(text) > longest:
        half = (longest - len(_GAP)) // 2
        text = text[:half] + _GAP + text[-half:]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
