"""Directives for the pages of docs/algorithms: what they show is read from the code.

- `{algorithm-options} NAME`: each option with its values, its default and its meaning.
- `{algorithm-costs} NAME`: what a client sends, keeps and computes, beside FedAvg's.
- `{algorithm-source} NAME`: the functions, without the docstrings.
"""

from algorithm_tables import costs_table, options_table, source_of
from docutils import nodes
from sphinx.util.docutils import SphinxDirective


def directive(text):
    """A directive that parses the Markdown that `text` makes of its argument."""

    class Directive(SphinxDirective):
        required_arguments = 1

        def run(self):
            container = nodes.container()
            lines = text(self.arguments[0]).splitlines()
            self.state.nested_parse(lines, self.content_offset, container)
            return container.children

    return Directive


def source(name):
    """The source as a block of Markdown."""
    return f"```python\n{source_of(name)}\n```"


def setup(app):
    """Adds the directives."""
    app.add_directive("algorithm-options", directive(options_table))
    app.add_directive("algorithm-costs", directive(costs_table))
    app.add_directive("algorithm-source", directive(source))
    return {"parallel_read_safe": True}
