"""Makes a site that works offline: turns formulas into MathML and reports other hosts."""

import re
from pathlib import Path

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
CONVERTER = LatexToMathML(annotation=True)  # the LaTeX stays in the page, to be copied

# Addresses that a browser fetches by itself: all `src`, and `href` of `link`, except for the
# page's own address. Only readers follow links `<a href>`.
_OUTSIDE = r"[\"']?\s*((?:https?:)?//[^\"'\s>)]+)"
FETCHED = re.compile(
    rf"<(?!a\s)[a-z]+\b[^>]*?\s(?:src|srcset|poster|data)={_OUTSIDE}"
    rf"|<link\b(?![^>]*\brel=[\"']?canonical)[^>]*?\shref={_OUTSIDE}"
    rf"|(?:url\(|@import\s)\s*{_OUTSIDE}",
    re.IGNORECASE,
)


def fetched_from_outside(text):
    """Finds addresses of other hosts that a browser fetches for this page or style."""
    return ["".join(found) for found in FETCHED.findall(text)]


def visit_math(translator, node):
    """Writes a formula as MathML, which browsers draw without scripts or fonts."""
    block = isinstance(node, nodes.math_block)
    try:
        formula = CONVERTER.convert_with_local_state(node.astext(), displaystyle=block)
    except LatexError as error:
        LOGGER.warning("formula %r: %s", node.astext(), error, location=node)
        formula = f"<code>{translator.encode(node.astext())}</code>"
    tag = "div" if block else "span"
    translator.body.append(f'<{tag} class="math">{formula}</{tag}>')
    raise nodes.SkipNode


def report_outside(app, error):
    """Warns of each address of another host, which fails a build with `--fail-on-warning`."""
    if error is not None or app.builder.format != "html":
        return
    for suffix in ("html", "css"):
        for path in sorted(Path(app.outdir).rglob(f"*.{suffix}")):
            for address in fetched_from_outside(path.read_text(encoding="utf-8")):
                LOGGER.warning("%s fetches %s", path.relative_to(app.outdir), address)


def setup(app):
    """Registers the renderer of formulas and the report."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("build-finished", report_outside)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
