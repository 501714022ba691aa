"""Texts from outside, such as names of files: no control codes, no markup, and a bounded length."""

_GAP = " ... "


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
