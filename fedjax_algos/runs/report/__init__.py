"""The report of a results folder: one HTML file that needs no network.

`html.py` escapes all texts; `page.py` makes the sections, of which `figure.html` and `figure.js`
are the figure's, and puts them into `template.html` with `style.css`.
"""
