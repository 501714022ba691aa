"""The report of a results folder: one HTML file that needs no network.

`html.py` escapes all texts. `page.py` makes the sections and puts them into `template.html` with
`style.css`; the section of the figure uses `figure.html` and `figure.js`.
"""
