"""The report of a results folder: one HTML file that needs no network.

`html.py` escapes all texts, `sections.py` and `figure.py` make the parts, and `page.py` puts them
into `template.html` with `style.css` and `figure.js`.
"""

from fedjax_algos.runs.report.page import ReportTables, make_report

__all__ = ["ReportTables", "make_report"]
