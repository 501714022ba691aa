"""Writes the pages of the claims, docs/claims.md and docs/claims/, before Sphinx reads pages."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "experiments" / "papers"))

from claim_files.pages import write_pages


def write(app):
    """Writes the pages into docs/, but not into another site that uses this configuration."""
    if app.srcdir == app.confdir:
        write_pages(Path(app.srcdir))


def setup(app):
    """Connects the writer."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
