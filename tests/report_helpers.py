"""Reads what commands write: tables, and reports with what they would load from elsewhere."""

import csv
import json
import re
from html.parser import HTMLParser

VOID, RAW = {"meta", "link", "img", "input"}, {"script", "style"}


def read_table(path):
    """The rows of a CSV file, as dictionaries of texts."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Page(HTMLParser):
    """The elements, the text and the tables of a page; every element has to be closed."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.open, self.elements, self.tables, self.raw = [], [], {}, {}
        self.rows, self.caption, self.text = [], "", ""
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows, self.caption = [], ""
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "table":
            self.tables.setdefault(self.caption, []).append(self.rows)

    def handle_data(self, data):
        if self.open and self.open[-1] in RAW:
            self.raw[len(self.elements) - 1] = data
            return
        self.text += data
        if "caption" in self.open:
            self.caption += data
        elif "th" in self.open or "td" in self.open:
            self.rows[-1][-1] += data

    def attributes(self, tag):
        return [given for name, given in self.elements if name == tag]

    @property
    def figure(self):
        """The data of the figure."""
        (index,) = [i for i in self.raw if self.elements[i][1].get("id") == "figure-data"]
        return json.loads(self.raw[index])


def assert_alone(page):
    """The page loads nothing, runs no other script than its own, and has no handler in a tag."""
    assert {tag for tag, _ in page.elements} <= {
        *("html", "head", "meta", "title", "link", "style", "body", "header", "nav", "main"),
        *("section", "h1", "h2", "h3", "p", "a", "ul", "li", "div", "span", "pre", "table"),
        *("caption", "thead", "tbody", "tr", "th", "td", "details", "summary", "figure", "img"),
        *("noscript", "label", "input", "select", "option", "button", "script"),
    }
    for tag, given in page.elements:
        assert not any(name.startswith("on") or name in ("style", "srcset") for name in given)
        for name in ("src", "href"):
            assert given.get(name, "#").startswith(("#", "data:image/png;base64,", "data:,")), tag
    assert len(page.attributes("script")) == 2  # the figure's data, and its script
    assert "http" not in re.sub(r"http-equiv|http://www\.w3\.org/2000/svg", "", page.source)
    assert "@import" not in page.source
    assert "url(" not in page.source.replace('"url(#inside)"', "")
