"""The command that shows finished results as a table: `table`."""

from pathlib import Path

import click

from fedjax_algos.analysis import papers
from fedjax_algos.analysis.statistics import records
from fedjax_algos.analysis.summary import summarise, summarise_pairs
from fedjax_algos.cli import formats
from fedjax_algos.cli.columns import ResultTable
from fedjax_algos.cli.method_tables import CHOSEN_BY_TEST_DATA, method_tables
from fedjax_algos.cli.options import Command, check_path
from fedjax_algos.cli.paper_tables import paper_table
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice, options, parse_value
from fedjax_algos.core.texts import printable
from fedjax_algos.runs import results
from fedjax_algos.runs.saving.configuration_file import read_configuration
from fedjax_algos.runs.saving.files import write_text, writing
from fedjax_algos.runs.settings import Settings

_OF_TABLES = {"text": formats.text, "markdown": formats.markdown, "latex": formats.latex}
_OF_RECORDS = {"csv": formats.as_csv, "json": formats.as_json}


@click.command(cls=Command)
@click.argument("folders", nargs=-1, metavar="RESULTS...")
@click.option(
    "--format",
    "form",
    default="text",
    metavar="FORMAT",
    help=f"{', '.join([*_OF_TABLES, *_OF_RECORDS])} [text]",
)
@click.option("--paper", help=f"columns of a paper: {', '.join(papers.PAPERS)} [compare's]")
@click.option("--target", metavar="VALUE", help="test accuracy to reach [the reference's best]")
@click.option("--reference", metavar="METHOD", help="that the others are compared with [the first]")
@click.option("--out", metavar="FILE", help="file to write [standard output]")
def table(
    folders: tuple[str, ...],
    form: str,
    paper: str | None,
    target: str | None,
    reference: str | None,
    out: str | None,
) -> None:
    """Show one or more results folders as a table, with the columns of compare or of a paper.

    text, markdown and latex have units and notes on the columns. csv and json have plain numbers:
    shares from 0 to 1, bytes, operations and seconds.

    fedgbo: the best accuracy, and the costs to reach it and the reference's. fedlga: rounds to the
    target. ghbm: the mean accuracy of the last 100 rounds, and the costs to reach the reference's.
    fedcompass: simulated seconds to the target, relative to the reference's. The reference is
    fedcompass for the last one and fedavg for the others; fedlga and fedcompass need --target.
    """
    check_choice("format", form, [*_OF_TABLES, *_OF_RECORDS])
    check_path("out", out)
    goal = None if target is None else parse_value(options(Settings)["target"], target)
    rows = results.read_folders(folders)
    if form in _OF_RECORDS:
        text = _OF_RECORDS[form](_records(rows, paper, goal, reference))
    else:
        tables = _tables(rows, paper, goal, reference)
        if any("grid" in (read_configuration(Path(folder)) or {}) for folder in folders):
            tables[0].notes.append(CHOSEN_BY_TEST_DATA)
        text = _OF_TABLES[form](tables)
    if out is None:
        return click.echo(text, nl=False)
    path = Path(out)
    with writing(path):
        if path.exists() or path.is_symlink():  # also one that leads nowhere
            raise ValueError(f"out={out!r} exists; name another file or remove it")
    write_text(path, text)
    click.echo(printable(path))


def _tables(rows: list[Row], paper, target, reference) -> list[ResultTable]:
    if paper is None:
        return method_tables(rows, target, reference)
    return [paper_table(papers.of_paper(rows, paper, reference, target))]


def _records(rows: list[Row], paper, target, reference) -> list[dict]:
    if paper is not None:
        return records(papers.of_paper(rows, paper, reference, target))
    own = records(summarise(rows, target, reference))
    base = own[0]["label"] if reference is None else reference
    pairs = {each["label"]: each for each in records(summarise_pairs(rows, target, reference))}
    without = dict.fromkeys(next(iter(pairs.values()), {}))  # the reference has no pair
    without |= {"reference": base} if pairs else {}
    return [each | without | pairs.get(each["label"], {}) | each for each in own]
