"""Builds HTML with every text escaped."""

import base64
import hashlib
import html
import json
import string
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

from fedjax_algos.base.files import read_file
from fedjax_algos.base.reprs import printable

_MAX_PICTURE_BYTES = 20_000_000
_PNG = b"\x89PNG\r\n\x1a\n"
_VOID = {"img", "input"}


class Html(str):
    """Markup, as opposed to text."""


def element(tag: str, *children: object, **attributes: object) -> Html:
    """Makes an element; escapes its children and attributes unless they are `Html`."""
    start = f"<{tag}"
    for name, value in attributes.items():
        if value is not None and value is not False:
            key = name.rstrip("_").replace("_", "-")
            start += f" {key}" if value is True else f' {key}="{html.escape(printable(value))}"'
    return Html(f"{start}>" if tag in _VOID else f"{start}>{joined(children)}</{tag}>")


def joined(parts: Iterable[object]) -> Html:
    """Joins texts, which are escaped, and `Html`."""

    def escaped(text: object) -> str:
        return html.escape("\n".join(map(printable, str(text).split("\n"))))

    return Html("".join(part if isinstance(part, Html) else escaped(part) for part in parts))


def table(
    headings: Sequence[object], rows: Iterable[Sequence], *, caption: str, kind: str = "numbers"
) -> Html:
    """Makes a table of "numbers" or "texts"; its first column has the headings of the rows."""
    head = element("tr", *(element("th", heading, scope="col") for heading in headings))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    parts = element("caption", caption), element("thead", head), element("tbody", *body)
    whole = element("table", *parts, class_=kind)
    # with a tab index, so that the keyboard can scroll it
    return element("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def details(title: str, *children: object) -> Html:
    """Makes a section that opens when its title is pressed."""
    return element("details", element("summary", title), *children)


def template(name: str) -> string.Template:
    """Reads a file of this folder as a template."""
    text = resources.files("fedjax_algos.runs.report").joinpath(name).read_text(encoding="utf-8")
    return string.Template(text)


def document(title: str, body: Iterable[Html], data: object) -> str:
    """Makes a whole page, with the style and the script of this folder and the script's data."""
    style, script = template("style.css").template, template("figure.js").template
    digests = (hashlib.sha256(text.encode()).digest() for text in (style, script))
    hashes = (base64.b64encode(digest).decode() for digest in digests)
    # the page allows no other style or script
    policy = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
    policy += "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*hashes)
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # so that no text in the data can end its element
        text = text.replace(character, f"\\u{ord(character):04x}")
    parts = {"policy": policy, "title": joined([title]), "style": style, "script": script}
    return template("template.html").substitute(parts, body=joined(body), data=text)


def read_if_there(path: Path, limit: int | None = None) -> bytes:
    """Reads a file; returns nothing if it cannot be read or has more than `limit` bytes."""
    try:
        return read_file(path, limit)
    except (OSError, ValueError):
        return b""


def picture(path: Path, description: str) -> Html:
    """Embeds a PNG picture in the page; returns nothing if the file does not exist."""
    content = read_if_there(path, _MAX_PICTURE_BYTES)
    if not content.startswith(_PNG):
        return Html()
    source = "data:image/png;base64," + base64.b64encode(content).decode()
    return element("figure", element("img", src=source, alt=description))
