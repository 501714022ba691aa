"""The claims of papers, what was seen of them, and the verdict that follows.

COMMAND   python experiments/papers/claims.py --help
EXPECTED  the verdicts, from the files of the claims
TIME      seconds, but for `run` and `new-seeds`, which take the `minutes` of the claims

Run it in the root of the checkout, which has data/ and results/. README.md describes the files.
"""

import sys
from collections import Counter
from pathlib import Path

import click
from claim_files import pages as markdown
from claim_files.reading import PAPERS, Claim, read_claim
from claim_files.repeating import draw, repeat
from claim_files.running import Run, run_claim
from claim_files.verdicts import VERDICTS, judge, read_claims


class ClaimName(click.ParamType):
    """PAPER/CLAIM, or the path of its file."""

    name = "claim"

    def convert(self, value, param, ctx):
        """The claim."""
        path = Path(value) if value.endswith(".toml") else PAPERS / f"{value}.toml"
        if not path.exists():
            self.fail(f"{path} does not exist; `list` has the names", param, ctx)
        return read_claim(path)


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
    """Print every claim with its verdict, and how many have each."""
    papers = read_claims()
    for each in papers:
        for judged in each.claims:
            kind = "trained" if judged.claim.trains else "arithmetic"
            click.echo(f"{judged.claim.name:46} {kind:11} {judged.verdict}")
    for trains in (True, False):
        own = [j for each in papers for j in each.claims if j.claim.trains == trains]
        click.echo(f"\n{'Trained' if trains else 'Arithmetic: nothing is trained'}")
        counts = Counter(judged.verdict for judged in own)
        for verdict in VERDICTS:
            click.echo(f"{counts[verdict]:4} {verdict}")


@cli.command()
def check():
    """Read and judge all files; an error names the file that is wrong."""
    click.echo(f"{sum(len(each.claims) for each in read_claims())} claims are read and judged")


@cli.command()
@click.argument("claim", type=ClaimName())
def show(claim: Claim):
    """Print a claim with its setting, numbers and checks."""
    click.echo(markdown.claim_page(judge(claim)), nl=False)


@cli.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="such as docs")
def pages(out: Path):
    """Write the pages of the claims, OUT/claims.md and OUT/claims/PAPER.md."""
    markdown.write_pages(out)


@cli.command()
@click.argument("claim", type=ClaimName())
def run(claim: Claim):
    """Run a claim with the seeds that its file fixes, and write what was seen beside it."""
    run_claim(Run(claim, tuple(range(claim.num_seeds))))
    click.echo(markdown.claim_page(judge(claim)), nl=False)


@cli.command(name="new-seeds")
@click.argument("claims", type=ClaimName(), nargs=-1, required=True)
@click.option("--seeds", type=Seeds(), required=True, help="such as 2000:2010")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="folder of the values")
def new_seeds(claims: tuple[Claim, ...], seeds: tuple[int, ...], out: Path):
    """Repeat claims with new seeds, and print their verdicts, old and new.

    A claim with fewer seeds of its own takes the first ones. Values go to OUT/PAPER/CLAIM.csv; a
    claim that has them is judged and not run again.
    """
    changes = 0
    for claim in claims:
        repeated = repeat(claim, seeds, out)
        changes += repeated.changed
        mark = "CHANGED" if repeated.changed else "same"
        verdicts = f"{repeated.old.verdict} -> {repeated.new.verdict}"
        click.echo(f"{mark:8} {claim.name:46} {claim.num_seeds:3} seeds  {verdicts}")
    click.echo(f"{changes} of {len(claims)} verdicts changed")


@cli.command(name="draw")
@click.option("--number", type=click.IntRange(1), required=True)
@click.option("--seed", type=click.IntRange(0), required=True, help="of the draw")
@click.option("--names", is_flag=True, help="print only the names, for new-seeds")
def draw_claims(number: int, seed: int, names: bool):
    """Draw claims that train, from all of them alike, and print their minutes."""
    drawn = draw([j.claim for each in read_claims() for j in each.claims], number, seed)
    for claim in drawn:
        click.echo(claim.name if names else f"{claim.minutes:6g} minutes  {claim.name}")
    if not names:
        click.echo(f"{sum(claim.minutes for claim in drawn):6g} minutes in all, on one CPU core")


if __name__ == "__main__":
    try:
        cli()
    except ValueError as error:
        sys.exit(f"error: {error}")
