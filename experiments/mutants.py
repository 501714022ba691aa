"""Puts one-line mistakes into the package, one at a time, and tells which tier of tests finds each.

`mutants.toml` has 60 mistakes: 30 that were drawn by a fixed seed from the syntax trees of all
files, and 30 that were chosen by hand. Each one is put into a copy of a commit, and the quick tier
runs there until a test fails, the tests of the changed file first. `--tier all` then runs all tests
on the mistakes that the quick tier did not find. Results are added to `mutants.csv`.

COMMAND   python experiments/mutants.py run --commit HEAD
EXPECTED  a line for each mistake, and at the end how many were found; an error if a place has moved
TIME      about a minute for each mistake that is found, a whole run of the tier for each other one
"""

import argparse
import ast
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST, TABLE = ROOT / "experiments/mutants.toml", ROOT / "experiments/mutants.csv"
COLUMNS = ["number", "commit", "tier", "found", "test", "seconds"]
SEED, DRAWN = 49, 30
HANGS = 300  # seconds of one test, after which it has found the mistake
TIERS = {"quick": [], "all": ["--all"]}
COMPARED = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
COMPARED |= {ast.Eq: ("==", "!="), ast.NotEq: ("!=", "==")}
COMPUTED = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}


def changes(tree, text):
    """Yields (line, column, end column, new text) of each mistake that fits into one line."""
    lines = text.splitlines()

    def operator(left, right, old, new):
        if left.end_lineno == right.lineno:
            line = lines[left.end_lineno - 1].encode()
            at = line.find(old.encode(), left.end_col_offset, right.col_offset)
            if at >= 0:
                yield (left.end_lineno, at, at + len(old), new)

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
            yield from operator(node.left, node.comparators[0], *COMPARED[type(node.ops[0])])
        elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
            yield from operator(node.left, node.right, *COMPUTED[type(node.op)])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield (node.lineno, node.col_offset, node.operand.col_offset, "")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            new = repr(node.value + 1)  # a constant, or an index
            yield (node.lineno, node.col_offset, node.end_col_offset, new)
        elif isinstance(node, ast.Call) and len(node.args) > 1 and not node.keywords:
            before, last = node.args[-2:]
            if before.end_lineno == last.end_lineno:
                yield (last.lineno, before.end_col_offset, last.end_col_offset, "")
        elif isinstance(node, ast.Call) and node.args and len(node.keywords) == 1:
            before, last = node.args[-1], node.keywords[0]
            if before.end_lineno == last.end_lineno:
                yield (last.lineno, before.end_col_offset, last.end_col_offset, "")


def draw(count=DRAWN, seed=SEED):
    """Mistakes drawn by the seed from those of all files, as they stand in `mutants.toml`."""
    found = []
    for path in sorted((ROOT / "fedjax_algos").rglob("*.py")):
        text = path.read_text()
        found += [(path, text, *change) for change in changes(ast.parse(text), text)]
    for path, text, number, start, end, new in random.Random(seed).sample(found, count):
        lines = text.splitlines()
        line = lines[number - 1].encode()
        changed = (line[:start] + new.encode() + line[end:]).decode()
        first = number - 1
        while text.count("\n".join(lines[first:number])) > 1:
            first -= 1
        lead = [*lines[first : number - 1]]
        where = path.relative_to(ROOT).as_posix()
        yield {
            "file": where,
            "old": "\n".join([*lead, lines[number - 1]]),
            "new": "\n".join([*lead, changed]),
        }


def mutants():
    """Numbers the list from 1; number 0 changes nothing, so no test may fail on it."""
    none = {"file": "fedjax_algos/__init__.py", "old": '"""\n\n', "new": '"""\n\n'}
    return dict(enumerate([none, *tomllib.loads(LIST.read_text())["mutant"]]))


def mistaken(mutant, root):
    """The file of a mistake in a checkout, and its new text; exits unless it fits exactly once."""
    path = root / mutant["file"]
    text = path.read_text()
    if text.count(mutant["old"]) != 1:
        sys.exit(f"{mutant['file']} has {text.count(mutant['old'])} times:\n{mutant['old']}")
    return path, text.replace(mutant["old"], mutant["new"])


class Plugin:
    """Sorts the tests of a changed file first, and writes down which test fails."""

    def __init__(self, file, report):
        self.places = Path(file).relative_to("fedjax_algos").with_suffix("").parts
        self.report = report

    def nearness(self, item):
        """How many folders the test shares with the changed file, and whether it has its name."""
        parts = item.path.relative_to(item.config.rootpath / "tests").with_suffix("").parts
        same = 0
        for own, other in zip(parts[:-1], self.places[:-1], strict=False):
            if own != other:
                break
            same += 1
        return -same, not parts[-1].startswith(f"test_{self.places[-1]}")

    def pytest_collection_modifyitems(self, items):
        items.sort(key=self.nearness)

    def pytest_runtest_logstart(self, nodeid):
        self.timer = threading.Timer(HANGS, self.found, (f"{nodeid} hangs", True))
        self.timer.daemon = True
        self.timer.start()

    def pytest_runtest_logfinish(self, nodeid):
        self.timer.cancel()

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.found(report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self.found(f"{report.nodeid} is not collected")

    def found(self, test, leave=False):
        if not self.report.exists():
            self.report.write_text(json.dumps(test))
        if leave:
            os._exit(1)


def test(file, report, *arguments):
    """Runs pytest in this process, in the working folder, with the plugin."""
    import pytest

    own = ["--numprocesses", "0", "-x", "-q", *arguments]
    sys.exit(pytest.main(own, plugins=[Plugin(file, Path(report))]))


def try_one(number, mutant, tier, commit):
    """The row of one mistake."""
    with tempfile.TemporaryDirectory() as folder:
        checkout, report = Path(folder, "checkout"), Path(folder, "report")
        git = ["git", "-C", str(ROOT), "archive", commit]
        archive = subprocess.run(git, check=True, capture_output=True).stdout
        checkout.mkdir()
        subprocess.run(["tar", "-x", "-C", str(checkout)], input=archive, check=True)
        if (shared := ROOT.parent / "shared").exists():
            Path(folder, "shared").symlink_to(shared)
        path, text = mistaken(mutant, checkout)
        path.write_text(text)
        command = [sys.executable, __file__, "test", mutant["file"], str(report), *TIERS[tier]]
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        seconds = round(time.perf_counter() - start)
        row = dict(number=number, commit=commit, tier=tier, seconds=seconds)
        if report.exists():
            return row | {"found": True, "test": json.loads(report.read_text())}
        if done.returncode != 0:
            raise RuntimeError(f"{number}: no test has failed, but pytest:\n{done.stdout[-2000:]}")
        return row | {"found": False, "test": ""}


def rows():
    """What `mutants.csv` holds."""
    return list(csv.DictReader(TABLE.read_text().splitlines())) if TABLE.exists() else []


def write(row):
    """Adds a row to `mutants.csv`, in place of the one of the same number, commit and tier."""
    key = "number", "commit", "tier"
    row = {name: str(row[name]) for name in COLUMNS}
    kept = [old for old in rows() if any(old[name] != row[name] for name in key)]
    with TABLE.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        order = {tier: place for place, tier in enumerate(TIERS)}
        ordered = sorted(
            [*kept, row], key=lambda r: (r["commit"], order[r["tier"]], int(r["number"]))
        )
        table.writerows(ordered)


def run(commit, tier, only, jobs):
    """Tries the mistakes that have no row yet; for "all" those that "quick" has not found."""
    name = ["git", "-C", str(ROOT), "rev-parse", "--short=8", commit]
    commit = subprocess.run(name, check=True, capture_output=True, text=True).stdout.strip()
    done = {(row["tier"], int(row["number"])): row for row in rows() if row["commit"] == commit}
    todo = only or list(mutants())
    todo = [number for number in todo if (tier, number) not in done or only]
    if tier == "all":
        todo = [n for n in todo if done.get(("quick", n), {}).get("found") == "False"]
    for mutant in mutants().values():
        mistaken(mutant, ROOT)
    lock = threading.Lock()

    def one(number):
        row = try_one(number, mutants()[number], tier, commit)
        with lock:
            write(row)
            print(f"{number:>3} {row['seconds']:>5} s  {row['test'] or 'NOT FOUND'}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, todo))
    counts = Counter((r["tier"], r["found"]) for r in rows() if r["commit"] == commit)
    seconds = sum(int(r["seconds"]) for r in rows() if r["commit"] == commit)
    print(f"{commit}: {dict(counts)}, {seconds / 3600:.1f} hours of one core")


def main():
    """The command line."""
    if sys.argv[1:2] == ["test"]:
        test(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=["draw", "run"])
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--tier", choices=TIERS, default="quick")
    parser.add_argument("--only", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.action == "draw":
        for mutant in draw():
            print("[[mutant]]")
            for key, value in mutant.items():
                print(f"{key} = '''{value}'''")
            print()
    else:
        run(options.commit, options.tier, options.only, options.jobs)


if __name__ == "__main__":
    main()
