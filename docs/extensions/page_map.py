"""Writes `llms.txt` beside the site: one line for each page, in the order of the menu."""

from pathlib import Path

from docutils import nodes

LONGEST = 200  # characters of a page's description


def pages(env, name, seen):
    """Yields the page and those below it, each once."""
    if name not in seen:
        seen.add(name)
        yield name
        for below in env.toctree_includes.get(name, ()):
            yield from pages(env, below, seen)


def description(doctree):
    """Returns the first sentence of the first paragraph of a page."""
    for paragraph in doctree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        sentence = text.partition(". ")[0].rstrip(".:")
        return (
            sentence if len(sentence) <= LONGEST else sentence[:LONGEST].rsplit(" ", 1)[0] + " ..."
        )
    return ""


def write(app, exception):
    """Writes the map after a build of the site."""
    if exception or app.builder.format != "html":
        return
    root = app.env.get_doctree(app.config.root_doc)
    lines = [f"# {app.config.project} {app.config.version}", "", f"> {description(root)}", ""]
    for name in pages(app.env, app.config.root_doc, set()):
        title = app.env.titles[name].astext()
        lines.append(f"- [{title}]({name}.html): {description(app.env.get_doctree(name))}")
    lines += [
        "",
        "`fedjax-algos list WHAT --json` prints what exists, with the options of each entry.",
    ]
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n")


def setup(app):
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
