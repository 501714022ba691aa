"""Shows finished results as a table with the columns of one of the papers.

COMMAND   python experiments/papers/paper_table.py ghbm RESULTS... --format markdown
EXPECTED  one line for each method
TIME      seconds

fedgbo: the best quality, and the costs to reach it and the reference's. fedlga: rounds to the
target. ghbm: the mean quality of the last 100 rounds, and the costs to reach the reference's.
fedcompass: simulated seconds to the target, relative to the reference's.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
from paper_measures import fedcompass, fedgbo, fedlga, ghbm
from paper_measures.tables import paper_table

from fedjax_algos.analysis.tables import FORMATS, RECORD_FORMATS, choose_columns, records
from fedjax_algos.base.files import write_text
from fedjax_algos.cli.finished import choose_records, goal_of_folders
from fedjax_algos.cli.method_tables import Goal
from fedjax_algos.cli.options import Command, labels_of, new_file
from fedjax_algos.core import Row
from fedjax_algos.runs.results import read_folders
from fedjax_algos.runs.studies.folder_content import read_configuration


class Paper(NamedTuple):
    """A paper's summary of rows, the columns of its table, and the reference without --reference.

    A paper without a target takes what the reference reaches.
    """

    summarise: Callable[..., list[Any]]
    columns_of: Callable
    reference: str | None
    has_target: bool


PAPERS = {
    "fedgbo": Paper(fedgbo.maximum_and_cost, fedgbo.columns_of, "fedavg", False),
    "fedlga": Paper(fedlga.rounds_to_target, fedlga.columns_of, None, True),
    "ghbm": Paper(ghbm.final_quality, ghbm.columns_of, "fedavg", False),
    "fedcompass": Paper(fedcompass.time_to_target, fedcompass.columns_of, "fedcompass", True),
}


def summarise(name: str, rows: list[Row], goal: Goal) -> list[Any]:
    """The summary of a paper, with one entry for each method; it takes of the goal what it has."""
    paper, given = PAPERS[name], {}
    if paper.reference is not None:
        given["reference"] = goal.reference or paper.reference
    if paper.has_target:
        if goal.target is None:
            raise ValueError(f"{name} needs a target; give --target with a quality such as 0.9")
        given["target"] = goal.target
    return paper.summarise(rows, metric=goal.metric, **given)


@click.command(cls=Command, help=(__doc__ or "").partition("\n")[0])
@click.argument("name", type=click.Choice(list(PAPERS)), metavar="PAPER")
@click.argument("folders", nargs=-1, required=True, metavar="RESULTS...")
@click.option("--format", "form", type=click.Choice([*FORMATS, *RECORD_FORMATS]), default="text")
@click.option("--target", type=float, help="for fedlga and fedcompass [the run's]")
@click.option("--target-metric", help="the quality [the run's, else accuracy]")
@click.option("--reference", help="not for fedlga [the run's, else fedavg, or fedcompass]")
@click.option("--label", multiple=True, metavar="OLD=NEW", help="another text for a method")
@click.option("--columns", metavar="A,B", help="the columns to show, in this order [all]")
@click.option("--out", metavar="FILE", help="file to write [standard output]")
def main(name, folders, form, target, target_metric, reference, label, columns, out):
    """The command; its options are those of `fedjax-algos table`."""
    paper, path = PAPERS[name], None if out is None else new_file(out)
    if reference is not None and paper.reference is None:
        raise ValueError(f"{name} has no reference; leave {reference=} out")
    if target is not None and not paper.has_target:
        raise ValueError(f"{name} has no target but what the reference reaches; leave it out")
    rows = read_folders(folders)
    configurations = [read_configuration(Path(folder)) or {} for folder in folders]
    goal = goal_of_folders(folders, configurations, target, target_metric, reference)
    labels = labels_of(label, rows)
    lines = summarise(name, rows, goal)
    names = None if columns is None else columns.split(",")
    if form in RECORD_FORMATS:
        if labels:
            raise ValueError(f"{form} has the labels of the runs; leave --label out")
        text = RECORD_FORMATS[form](choose_records(records(lines), names))
    else:
        tables = [paper_table(lines, *paper.columns_of(lines), goal.metric, labels)]
        text = FORMATS[form](tables if names is None else choose_columns(tables, names))
    if path is None:
        click.echo(text, nl=False)
    else:
        write_text(path, text)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"error: {error}")
