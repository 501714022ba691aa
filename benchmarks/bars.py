"""The speed bars, measured by the scripts here one after another, as one table with verdicts.

COMMAND   python benchmarks/bars.py --environments .venv-peers
          python benchmarks/bars.py --only cnn mlp --rivals pfl "PyTorch by hand" --out some.json
          python benchmarks/bars.py --from some.json --out all.json
EXPECTED  every line "met"
TIME      80 minutes on two CPU cores with all rivals and --repeats 3

Each line is printed and kept in `--out` as soon as it is known; the table comes at the end, with
the rivals that did not run in its foot. A bar that is not met is no error: the exit code is 1 where
a measurement failed.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from peers.rivals import RIVALS

HERE = Path(__file__).parent
PEERS = "peers/compare.py"
HEADS = ("work", "bar", "measured", "verdict", "fastest library", "fastest loop by hand", "date")


class Bar(NamedTuple):
    asked: str
    values: Callable[[dict], list[float]]  # of what the script wrote
    meets: Callable[[float], bool]  # asked of each value
    shown: str


class Line(NamedTuple):
    work: str
    command: str  # a script beside this one, and its arguments
    bars: list[Bar]


def at_least(times, asked, value):
    return Bar(
        f"at least {times} times {asked}",
        lambda told: [value(told)],
        lambda ratio: ratio >= times,
        "{:.2f} times",
    )


def beats_peers(times, asked="faster than the fastest peer"):
    return at_least(times, asked, lambda told: min(told["ratios"].values()))


def under(seconds, asked, value):
    return Bar(
        f"{asked} in under {seconds} s",
        lambda told: [value(told)],
        lambda taken: taken < seconds,
        "{:.1f} s",
    )


def steady(asked, part, key):
    """A part's ratios to its first point, up or down."""
    return Bar(
        f"{asked} within 10%",
        lambda told: [point[key] for point in told[part][1:]],
        lambda ratio: abs(ratio - 1) <= 0.1,
        "{:.3f}",
    )


LINES = {
    "cnn": Line(
        "CNN round, cohort 50",
        f"{PEERS} --work cnn --cohort 50",
        [
            beats_peers(1.5),
            Bar(
                "at least 65% of the matrix products' rate in the same process",
                lambda told: [told["gflops"] / told["gemm_gflops"]],
                lambda share: share >= 0.65,
                "{:.0%}",
            ),
        ],
    ),
    "mlp-50": Line(
        "MLP round, cohort 50",
        f"{PEERS} --work mlp --cohort 50",
        [beats_peers(2)],
    ),
    "mlp-200": Line(
        "MLP round, cohort 200",
        f"{PEERS} --work mlp --cohort 200",
        [beats_peers(2)],
    ),
    "linear": Line(
        "logistic regression 784-62, cohort 200, one step",
        f"{PEERS} --work linear --cohort 200",
        [beats_peers(5, "the fastest peer's clients a second")],
    ),
    "cohort": Line(
        "cohorts of 100 to 10,000, MLP",
        "scaling.py cohort",
        [
            steady("time a client", "cohort", "ratio"),
            steady("peak memory, chunked,", "cohort", "memory_ratio"),
        ],
    ),
    "population": Line(
        "populations of 1e3 to 1e6, logistic regression, cohort 100",
        "scaling.py population",
        [
            steady("time a round", "population", "ratio"),
            under(
                60,
                "1e6 clients of 20 examples of 32 features built",
                lambda told: told["population"][-1]["built"],
            ),
        ],
    ),
    "sweep": Line(
        "sweep of 16 settings, digits, MLP",
        "sweep.py",
        [
            at_least(4, "faster than 16 processes", lambda told: told["cold"]),
            at_least(1.5, "faster than 16 runs in one warm process", lambda told: told["warm"]),
        ],
    ),
    "processes": Line(
        "CNN round, 2 processes of a core against one",
        "scaling.py processes",
        [at_least(1.7, "faster", lambda told: 1 / told["processes"][-1]["ratio"])],
    ),
    "first": Line(
        "`compare` on the digits",
        "scaling.py first",
        [under(15, "first round, all included,", lambda told: statistics.median(told["first"]))],
    ),
}


def machine():
    """What a measurement depends on, and its date."""
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "date": datetime.datetime.now().isoformat(" ", "minutes"),
        "python": platform.python_version(),
        "jax": importlib.metadata.version("jax"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "command": shlex.join(["python", *sys.argv]),
    }


def measure(line, given):
    """Runs a line's script: what it wrote as "told", or why there is nothing as "failed"."""
    script, *arguments = line.command.split()
    peers = script == PEERS
    if peers:
        arguments += ["--environments", str(given.environments), "--only", *given.rivals]
    if given.repeats:
        arguments += ["--repeats", str(given.repeats)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "told.json"
        command = [sys.executable, str(HERE / script), *arguments]
        command += ["--out" if peers else "--json", str(path)]
        last = ""
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            for said in process.stdout:
                print(said, end="", file=sys.stderr, flush=True)
                last = said.strip() or last
        told = json.loads(path.read_text()) if path.exists() else {}
    # other params than ours end compare.py with an error when all is measured: that is for the foot
    if not told or (process.returncode and not told.get("others")):
        return {"failed": f"exit {process.returncode}: {last}"}
    if peers and not told["ratios"]:
        return {"failed": "no rival ran, see below", "told": told}
    return {"told": told}


def fastest(told, by_hand):
    """The name and the ratio of the fastest library, or of the fastest loop by hand."""
    for name, ratio in told.get("ratios", {}).items():  # from the fastest on
        if RIVALS[name].by_hand == by_hand:
            return f"{name} {ratio:.2f}"
    return ""


def rows_of(name, result):
    """A row for each bar of a line."""
    work, _, bars = LINES[name]
    told, date = result.get("told", {}), result["machine"]["date"]
    peers = [fastest(told, by_hand=False), fastest(told, by_hand=True)]
    rows = []
    for bar in bars:
        if "failed" in result:
            rows.append([work, bar.asked, result["failed"], "FAILED", *peers, date])
            continue
        values = bar.values(told)
        verdict = "met" if all(map(bar.meets, values)) else "NOT met"
        measured = " ".join(map(bar.shown.format, values))
        rows.append([work, bar.asked, measured, verdict, *peers, date])
    return rows


def foot_of(name, result):
    """Rivals that are not in a line and why, and those whose params differ."""
    told = result.get("told", {})
    if "ratios" not in told:
        return []
    left = {rival: why for rival, why in told["absent"].items() if rival not in told["ratios"]}
    notes = [f"{rival}: {why}" for rival, why in left.items()] + told["notes"]
    notes += [
        f"{rival}: params differ from those of our first setting by {told['errors'][rival]:.0e}, "
        f"above {told['agrees']:.0e}"
        for rival in told["others"]
    ]
    others = RIVALS.keys() - told["ratios"].keys() - left.keys()
    if others:
        notes.append(f"not asked, see --rivals: {'; '.join(sorted(others))}")
    return [f"{name}: {note}" for note in notes]


def show(rows):
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def arguments_of(argv):
    parser = argparse.ArgumentParser()
    names = dict.fromkeys([*LINES, *(name.split("-")[0] for name in LINES)])
    add = parser.add_argument
    add("--only", nargs="+", choices=names, default=list(LINES), metavar="LINE", help=str([*names]))
    add("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS), metavar="RIVAL")
    add("--environments", type=Path, default=Path(".venv-peers"), help="a folder of the rivals'")
    add("--repeats", type=int, help="of everything, in place of each script's own number")
    add("--from", dest="earlier", nargs="+", type=Path, default=[], help="--out of earlier runs")
    add("--out", type=Path, default=Path("results/bars.json"), help="a file for all numbers")
    given = parser.parse_args(argv)
    if given.repeats is not None and given.repeats < 1:
        parser.error(f"--repeats {given.repeats} is too few; give at least 1")
    if given.out.exists() and given.out not in given.earlier:
        parser.error(f"{given.out} exists; give another --out, or --from {given.out} to go on")
    return given


def main(argv=None):
    given = arguments_of(argv)
    results = {}
    for path in given.earlier:
        for name, result in json.loads(path.read_text())["lines"].items():
            if name not in results or "failed" not in result:
                results[name] = result
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for name, line in LINES.items():
        asked = name in given.only or name.split("-")[0] in given.only
        if asked and "failed" in results.get(name, {"failed": "not measured"}):
            here = machine()
            results[name] = measure(line, given) | {"machine": here}
        if name in results:
            show(rows_of(name, results[name]))
            given.out.write_text(json.dumps({"machine": machine(), "lines": results}, indent=1))

    results = {name: results[name] for name in LINES if name in results}
    print()
    show([HEADS, ["---"] * len(HEADS)])
    for name, result in results.items():
        show(rows_of(name, result))
    notes = [note for name, result in results.items() for note in foot_of(name, result)]
    notes += [
        "Python {python}, jax {jax}, {cores} cores of {cpu}: {command}".format(**result["machine"])
        for result in results.values()
    ]
    for note in dict.fromkeys(notes):
        print(f"\n- {note}")
    return int(any("failed" in result for result in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
