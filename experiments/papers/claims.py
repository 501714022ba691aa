"""The claims of papers, what was seen of them, and the verdict that follows.

COMMAND   python experiments/papers/claims.py --help
EXPECTED  the verdicts, from the files of the claims
TIME      seconds, but for `run` and `new-seeds`, which take the `minutes` of the claims

Run it in the root of the checkout, which has data/ and results/. README.md describes the files.
"""

import sys
from pathlib import Path

import click
from claim_files import pages as markdown
from claim_files.headlines import headline_table
from claim_files.reading import PAPERS, Claim, read_claim, read_row
from claim_files.repeating import draw, repeat
from claim_files.running import Run, run_row
from claim_files.verdicts import read_claims


class ClaimName(click.ParamType):
    """PAPER/CLAIM, PAPER/ROW for one of its rows, or the path of its file."""

    name = "claim"

    def convert(self, value, param, ctx):
        """The claim."""
        path = Path(value) if value.endswith(".toml") else PAPERS / f"{value}.toml"
        if path.exists():
            return read_claim(path)
        try:
            row = read_row(path.parent, path.stem)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return read_claim(row.path)._replace(rows=(row,), claim=row.claim)


class Seeds(click.ParamType):
    """FIRST:END, without END."""

    name = "seeds"

    def convert(self, value, param, ctx):
        """The numbers."""
        first, _, end = value.partition(":")
        if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
            self.fail(f"{value!r} is no range such as 2000:2010", param, ctx)
        return tuple(range(int(first), int(end)))


@click.group(help=(__doc__ or "").partition("\n")[0])
def cli():
    """One command for the claims."""


@cli.command(name="list")
def list_claims():
    """Print every claim with its rows and verdicts, and how many rows have each verdict."""
    judged = [claim for each in read_claims() for claim in each.claims]
    for claim in judged:
        click.echo(f"{claim.claim.name:42} {claim.verdict}")
        for row in claim.rows if len(claim.rows) > 1 else ():
            click.echo(f"  {row.row.name:40} {row.verdict}")
    for trains, heading in ((True, "Trained"), (False, "Arithmetic: nothing is trained")):
        click.echo(f"\n{heading}")
        for verdict, number in markdown.counted(judged, trains).items():
            click.echo(f"{number:4} {verdict}")


@cli.command()
def check():
    """Read and judge all files; an error names the file that is wrong."""
    claims = [claim for each in read_claims() for claim in each.claims]
    rows = sum(len(claim.rows) for claim in claims)
    click.echo(f"{len(claims)} claims with {rows} rows are read and judged")


@cli.command()
@click.argument("claim", type=ClaimName())
def show(claim: Claim):
    """Print a claim with its setting, numbers and checks."""
    click.echo(markdown.claim_page(claim), nl=False)


@cli.command()
def headlines():
    """Print the table of headline questions, which README.md has."""
    click.echo(headline_table())


@cli.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="such as docs")
def pages(out: Path):
    """Write the pages of the claims, OUT/claims.md and OUT/claims/PAPER.md."""
    markdown.write_pages(out)


@cli.command()
@click.argument("claim", type=ClaimName())
def run(claim: Claim):
    """Run a claim, or one row, with the seeds of its file, and write the values beside it."""
    if not claim.runs:
        raise ValueError(f"{claim.name} cannot be run here: {claim.rows[0].needs}")
    for row in claim.runs:
        run_row(Run(row, tuple(range(row.num_seeds))))
    click.echo(markdown.claim_page(claim), nl=False)


@cli.command(name="new-seeds")
@click.argument("claims", type=ClaimName(), nargs=-1, required=True)
@click.option("--seeds", type=Seeds(), required=True, help="such as 2000:2010")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="folder of the values")
def new_seeds(claims: tuple[Claim, ...], seeds: tuple[int, ...], out: Path):
    """Repeat claims with new seeds, and print their verdicts, old and new.

    A row with fewer seeds of its own takes the first ones. Values go to OUT/PAPER/CLAIM.csv; a row
    that has them is judged and not run again.
    """
    rows = [row for claim in claims for row in repeat(claim, seeds, out)]
    for row in rows:
        (old, new), mark = row, "CHANGED" if row.changed else "same"
        verdicts = f"{old.verdict} -> {new.verdict}"
        click.echo(f"{mark:8} {old.row.name:42} {old.row.num_seeds:3} seeds  {verdicts}")
    changes = sum(row.changed for row in rows)
    click.echo(f"{changes} of {len(rows)} verdicts changed")


@cli.command(name="draw")
@click.option("--number", type=click.IntRange(1), required=True)
@click.option("--seed", type=click.IntRange(0), required=True, help="of the draw")
@click.option("--names", is_flag=True, help="print only the names, for new-seeds")
def draw_claims(number: int, seed: int, names: bool):
    """Draw claims that train, from all of them alike, and print their minutes."""
    drawn = draw([judged.claim for each in read_claims() for judged in each.claims], number, seed)
    for claim in drawn:
        click.echo(claim.name if names else f"{claim.minutes:6g} minutes  {claim.name}")
    if not names:
        click.echo(f"{sum(claim.minutes for claim in drawn):6g} minutes in all, on one CPU core")


if __name__ == "__main__":
    try:
        cli()
    except ValueError as error:
        sys.exit(f"error: {error}")
