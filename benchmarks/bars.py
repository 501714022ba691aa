"""The speed bars, measured by the scripts here one after another, as one table with verdicts.

COMMAND   python benchmarks/bars.py --environments .venv-peers
          python benchmarks/bars.py --only cnn mlp --rivals pfl "PyTorch by hand" --out some.json
          python benchmarks/bars.py --from some.json --out all.json
EXPECTED  every line "met"
TIME      80 minutes on two CPU cores with all rivals and --repeats 3

Each line is printed and written to `--out` as soon as it is measured. The table comes at the end,
with the rivals that did not run in its notes. A bar that is not met is not an error: the exit code
is 1 if a measurement failed.
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
    requirement: str
    values: Callable[[dict], list[float]]  # from the numbers that the script wrote
    meets: Callable[[float], bool]  # called with each value
    template: str  # of a value in the table


class Line(NamedTuple):
    work: str
    command: str  # a script beside this one, and its arguments
    bars: list[Bar]


def at_least(times, what, value):
    return Bar(
        f"at least {times} times {what}",
        lambda numbers: [value(numbers)],
        lambda ratio: ratio >= times,
        "{:.2f} times",
    )


def beats(times, who="library"):
    """Than the fastest of the libraries, or of the loops by hand."""

    def ratios(numbers):
        named = numbers["ratios"].items()
        return [ratio for name, ratio in named if RIVALS[name].by_hand == (who != "library")]

    return Bar(
        f"at least {times} times faster than the fastest {who}",
        lambda numbers: sorted(ratios(numbers))[:1],
        lambda ratio: ratio >= times,
        "{:.2f} times",
    )


NEW_JAX = tuple(map(int, importlib.metadata.version("jax").split(".")[:2])) >= (0, 12)


def under(seconds, what, value):
    return Bar(
        f"{what} in under {seconds} s",
        lambda numbers: [value(numbers)],
        lambda taken: taken < seconds,
        "{:.1f} s",
    )


def steady(what, part, key):
    """All ratios of a part's points to its first point are within 10% of 1."""
    return Bar(
        f"{what} within 10%",
        lambda numbers: [point[key] for point in numbers[part][1:]],
        lambda ratio: abs(ratio - 1) <= 0.1,
        "{:.3f}",
    )


LINES = {
    "cnn": Line(
        "CNN round, cohort 50",
        f"{PEERS} --work cnn --cohort 50",
        [
            beats(1.5),
            beats(1.25 if NEW_JAX else 1.1, "loop by hand"),
            Bar(
                "at least 65% of the matrix products' rate in the same process",
                lambda numbers: [numbers["gflops"] / numbers["gemm_gflops"]],
                lambda share: share >= 0.65,
                "{:.0%}",
            ),
        ],
    ),
    "mlp-50": Line(
        "MLP round, cohort 50",
        f"{PEERS} --work mlp --cohort 50",
        [beats(2), beats(2.5, "loop by hand")],
    ),
    "mlp-200": Line(
        "MLP round, cohort 200",
        f"{PEERS} --work mlp --cohort 200",
        [beats(2), beats(2.5, "loop by hand")],
    ),
    "linear": Line(
        "logistic regression 784-62, cohort 200, one step",
        f"{PEERS} --work linear --cohort 200",
        [beats(5), beats(4, "loop by hand")],
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
                lambda numbers: numbers["population"][-1]["built"],
            ),
        ],
    ),
    "sweep": Line(
        "sweep of 16 settings, digits, MLP",
        "sweep.py",
        [
            at_least(4, "faster than 16 processes", lambda numbers: numbers["cold"]),
            at_least(
                1.5, "faster than 16 runs in one warm process", lambda numbers: numbers["warm"]
            ),
        ],
    ),
    "processes": Line(
        "CNN round, 2 processes of a core against one",
        "scaling.py processes",
        [at_least(1.7, "faster", lambda numbers: 1 / numbers["processes"][-1]["ratio"])],
    ),
    "first": Line(
        "`compare` on the digits",
        "scaling.py first",
        [
            under(
                15,
                "first round, all included,",
                lambda numbers: statistics.median(numbers["first"]),
            )
        ],
    ),
}


def machine():
    """The machine and the versions that a measurement depends on, and its date."""
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
    """Runs a line's script: the numbers that it wrote as "numbers", or the reason as "failed"."""
    script, *arguments = line.command.split()
    peers = script == PEERS
    if peers:
        arguments += ["--environments", str(given.environments), "--only", *given.rivals]
    if given.repeats:
        arguments += ["--repeats", str(given.repeats)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.json"
        command = [sys.executable, str(HERE / script), *arguments]
        command += ["--out" if peers else "--json", str(path)]
        last = ""
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            for output in process.stdout:
                print(output, end="", file=sys.stderr, flush=True)
                last = output.strip() or last
        numbers = json.loads(path.read_text()) if path.exists() else {}
    # compare.py ends with an error if params differ, after all is measured: see `notes_of`
    if not numbers or (process.returncode and not numbers.get("others")):
        return {"failed": f"exit {process.returncode}: {last}"}
    if peers and not numbers["ratios"]:
        return {"failed": "no rival ran, see below", "numbers": numbers}
    return {"numbers": numbers}


def fastest(numbers, by_hand):
    """The name and the ratio of the fastest library, or of the fastest loop by hand."""
    for name, ratio in numbers.get("ratios", {}).items():  # the fastest first
        if RIVALS[name].by_hand == by_hand:
            return f"{name} {ratio:.2f}"
    return ""


def rows_of(name, result):
    """A row for each bar of a line."""
    work, _, bars = LINES[name]
    numbers, date = result.get("numbers", {}), result["machine"]["date"]
    peers = [fastest(numbers, by_hand=False), fastest(numbers, by_hand=True)]
    rows = []
    for bar in bars:
        if "failed" in result:
            rows.append([work, bar.requirement, result["failed"], "FAILED", *peers, date])
            continue
        values = bar.values(numbers)
        verdict = "met" if all(map(bar.meets, values)) else "NOT met"
        verdict = verdict if values else "not measured"
        measured = " ".join(map(bar.template.format, values))
        rows.append([work, bar.requirement, measured, verdict, *peers, date])
    return rows


def notes_of(name, result):
    """The rivals that are missing in a line, with the reason, and those whose params differ."""
    numbers = result.get("numbers", {})
    if "ratios" not in numbers:
        return []
    left = {
        rival: why for rival, why in numbers["absent"].items() if rival not in numbers["ratios"]
    }
    notes = [f"{rival}: {why}" for rival, why in left.items()] + numbers["notes"]
    notes += [
        f"{rival}: params differ from those of our first setting by "
        f"{numbers['errors'][rival]:.0e}, above {numbers['agrees']:.0e}"
        for rival in numbers["others"]
    ]
    others = RIVALS.keys() - numbers["ratios"].keys() - left.keys()
    if others:
        notes.append(f"not requested, see --rivals: {'; '.join(sorted(others))}")
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
        selected = name in given.only or name.split("-")[0] in given.only
        if selected and "failed" in results.get(name, {"failed": "not measured"}):
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
    notes = [note for name, result in results.items() for note in notes_of(name, result)]
    notes += [
        "Python {python}, jax {jax}, {cores} cores of {cpu}: {command}".format(**result["machine"])
        for result in results.values()
    ]
    for note in dict.fromkeys(notes):
        print(f"\n- {note}")
    return int(any("failed" in result for result in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
