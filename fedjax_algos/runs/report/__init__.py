"""The report of a results folder: one HTML file that needs no network.

`html.py` escapes all texts, `figure.py` makes the figure with `figure.html`, and `page.py` makes
the other sections and puts all into `template.html` with `style.css` and `figure.js`.
"""
