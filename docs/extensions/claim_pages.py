"""Writes the pages of the claims, docs/claims.md and docs/claims/, before Sphinx reads pages."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "experiments" / "papers"))

from claim_files.pages import write_pages


def setup(app):
    """Connects the writer."""
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir)))
    return {"parallel_read_safe": True}
