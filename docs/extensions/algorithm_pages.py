"""Directives for the pages of algorithms and codecs, which read their content from the code.

- `{algorithm-options} NAME`: each option with its values, its default and its meaning.
- `{algorithm-costs} NAME`: the costs of a client, beside FedAvg's.
- `{algorithm-source} NAME`: the functions, without the docstrings.
- `{algorithm-figure} NAME`: its accuracy on a small task, beside FedAvg's, with a comparison.
- `{codec-source} NAME` and `{codec-options} NAME`: the same for a codec.
- `{codec-error} SPEC`: its bits and its error for two vectors, with the options of the spec.
"""

import os
from pathlib import Path

import algorithm_figures
from algorithm_tables import costs_table, options_table, source_of
from codec_tables import codec_options, error_table
from docutils import nodes
from sphinx.util.docutils import SphinxDirective


def directive(text):
    """Makes a directive that parses the Markdown `text(argument)`."""

    class Directive(SphinxDirective):
        required_arguments = 1

        def run(self):
            container = nodes.container()
            lines = text(self.arguments[0]).splitlines()
            self.state.nested_parse(lines, self.content_offset, container)
            for table in container.findall(nodes.table):
                table["classes"].append(self.name)  # for site.css
            return container.children

    return Directive


def source(name):
    """The source as a block of Markdown."""
    return f"```python\n{source_of(name)}\n```"


class Figure(SphinxDirective):
    """Adds the figure with its caption, and a sentence that compares the curves."""

    required_arguments = 1

    def run(self):
        (name,) = self.arguments
        picture = Path(self.env.doctreedir) / "algorithm_figures" / f"{name}.svg"
        picture.parent.mkdir(parents=True, exist_ok=True)
        algorithm_figures.draw(name, picture)
        for table in algorithm_figures.TABLES:
            self.env.note_dependency(str(table))
        folder = Path(self.env.doc2path(self.env.docname)).parent
        first, second = algorithm_figures.labels_of(name).values()
        y_label = algorithm_figures.TASKS[algorithm_figures.task_of(name)].y_label
        lines = [
            f"```{{figure}} {Path(os.path.relpath(picture, folder)).as_posix()}",
            f":alt: {y_label} of {first} and of {second}",
            ":align: center",
            algorithm_figures.caption_of(name),
            "```",
            "",
            algorithm_figures.reading_of(name),
        ]
        container = nodes.container()
        self.state.nested_parse(lines, self.content_offset, container)
        return container.children


def setup(app):
    """Adds the directives."""
    app.add_directive("algorithm-options", directive(options_table))
    app.add_directive("algorithm-costs", directive(costs_table))
    app.add_directive("algorithm-source", directive(source))
    app.add_directive("algorithm-figure", Figure)
    app.add_directive("codec-source", directive(source))
    app.add_directive("codec-options", directive(codec_options))
    app.add_directive("codec-error", directive(error_table))
    return {"parallel_read_safe": True}
