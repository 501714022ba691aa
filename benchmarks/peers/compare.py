"""A round of ours and of each rival, alternating, as one table of medians and ratios.

COMMAND   python benchmarks/peers/compare.py --work cnn --cohort 50
          python benchmarks/peers/compare.py --work mlp --cohort 200 --only pfl "PyTorch by hand"
TIME      10 to 20 minutes on two CPU cores with --repeats 3

First, ours and each rival run a few rounds in each of their settings in `rivals.py`, on data whose
order does not matter. This measures the peak memory of the whole process tree, compares the params
with ours, and chooses the fastest setting. Then ours and a rival run in turn, each in a process of
its own, `--repeats` times; a rival that took twice as long as the fastest is not run again. The
time of a round is the median over all rounds of a process but the first, and a ratio is the median
over neighbouring runs. Run it on a quiet machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import work
from rivals import CORES, OURS, RIVALS

HERE = Path(__file__).parent
# largest relative error of how far the params went: where rounding takes a unit across its ReLU,
# NumPy's own 32 bits differ by 3e-4 from its 64 after the checked rounds; other work by .1 and more
AGREES = 1e-3
ROUNDS = {"cnn": 5, "mlp": 20, "linear": 50}
CHECKED = {"cnn": 3, "mlp": 5, "linear": 10}  # rounds for the choice of the setting
CONTENDS = 2  # times the fastest rival's round: a slower rival is not run again
HEADS = [
    *("who", "version", "setting", "first round s", "round s"),
    *("clients/s", "of ours", "GFLOP/s", "peak MB", "error"),
]


class Failure(Exception):
    """A run that printed no result; the message is its last output."""


def command_to_make(rival, given):
    folder = given.environments / rival.environment
    requirements = HERE / "requirements" / f"{rival.environment}.txt"
    path = os.path.relpath(requirements)
    return f"{rival.python} -m venv {folder} && {folder}/bin/pip install -r {path}"


def command_to_run(rival, setting, given, rounds):
    launcher = rival.launcher.split()
    if rival.environment:
        launcher[0] = str(given.environments / rival.environment / "bin" / launcher[0])
    else:
        launcher[0] = sys.executable
    task = f"--work {given.work} --cohort {given.cohort} --rounds {rounds}"
    return [*launcher, str(HERE / rival.script), *task.split(), *setting.split()]


def tree_of(root):
    """The ids of a process and of all its descendants."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                status = Path(f"/proc/{entry}/stat").read_text()
            except OSError:  # it has just ended
                continue
            parents[int(entry)] = int(status.rpartition(")")[2].split()[1])
    found, size = {root}, 0
    while len(found) > size:
        size = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found


def megabytes(root):
    """The memory of the tree: the private part of each process, and the largest shared part."""
    alone, shared = 0, 0
    for process in tree_of(root):
        try:
            pages = Path(f"/proc/{process}/statm").read_text().split()
        except OSError:
            continue
        alone += int(pages[1]) - int(pages[2])
        shared = max(shared, int(pages[2]))
    return (alone + shared) * os.sysconf("SC_PAGESIZE") / 2**20


def run(rival, setting, given, check=None):
    """The result of one run; with a file, of the few rounds of the check, with peak memory."""
    watch, extra = check is not None, ["--check", "--params", check] if check else []
    rounds = min(given.rounds, CHECKED[given.work]) if watch else given.rounds
    command = [*command_to_run(rival, setting, given, rounds), *extra]
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    # a launcher of several processes would choose this itself, with a warning
    if rival.launcher != "python":
        environment["OMP_NUM_THREADS"] = "1"
    peak = 0.0

    def look():
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, megabytes(process.pid))
            time.sleep(0.1)

    with tempfile.TemporaryFile("w+") as log:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        except OSError as error:  # an environment without its launcher
            raise Failure(str(error)) from None
        watcher = threading.Thread(target=look)
        if watch:
            watcher.start()
        try:
            output, _ = process.communicate(timeout=given.timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Failure(f"no result within {given.timeout} s") from None
        finally:
            if watch:
                watcher.join()
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if process.returncode or not lines:
            log.seek(0)
            last = [line for line in log.read().splitlines() if line.strip()][-1:]
            raise Failure(f"exit {process.returncode}: {''.join(last)[:200]}")
    line = json.loads(lines[-1])
    if watch:
        line["peak_mb"] = max(peak, line["peak_mb"])
    return line


def try_settings(name, rival, given, reference):
    """The fastest setting: (setting, its result, relative error of its params, all failures)."""
    tried, failures = [], []
    for setting in rival.settings:
        with tempfile.TemporaryDirectory() as folder:
            saved = f"{folder}/params.npz"
            try:
                line = run(rival, setting, given, check=saved)
            except Failure as failure:
                failures.append(f"{name} {setting}: {failure}")
                tell(failures[-1])
                continue
            moved = np.load(saved)["moved"]
        origin = moved if reference is None else reference
        error = float(np.linalg.norm(moved - origin) / np.linalg.norm(origin))
        reference = origin
        seconds = np.median(line["round_s"])
        tell(f"{name} {setting}: {seconds:.3f} s a round, error {error:.1e}")
        tried.append((seconds, setting, line, error))
    if not tried:
        return None, failures, reference
    # a setting that does other work is reported, whether it is the fastest or not
    worst = max(error for *_, error in tried)
    _, setting, line, _ = min(tried, key=lambda one: one[0])
    return (setting, line, worst), failures, reference


def tell(message):
    print(message, file=sys.stderr, flush=True)


def seconds_of(lines):
    return float(np.median([second for line in lines for second in line["round_s"]]))


def row_of(name, lines, chosen, ratio, given):
    setting, first, error = chosen
    seconds = seconds_of(lines)
    flops = work.useful_flops(work.WORKS[given.work], given.cohort)
    return [
        name,
        first["version"],
        setting.replace("--", ""),
        f"{np.median([line['first_round_s'] for line in lines]):.2f}",
        f"{seconds:.4f}",
        f"{given.cohort / seconds:,.0f}",
        f"{ratio:.2f}",
        f"{flops / seconds / 1e9:.1f}",
        f"{first['peak_mb']:,.0f}",
        f"{error:.0e}" + ("" if error < AGREES else " (!)"),
    ]


def choose(given):
    """Ours and the rivals that run, {name: (setting, result, error)}; other rows; failures."""
    ours, notes, reference = try_settings("ours", OURS, given, None)
    if ours is None:
        raise SystemExit("ours does not run: " + "; ".join(notes))
    chosen, rows = {}, []
    for name in given.only:
        rival = RIVALS[name]
        if not (given.environments / rival.environment).is_dir():
            rows.append([name, "missing", f"`{command_to_make(rival, given)}`"])
            continue
        best, failures, _ = try_settings(name, rival, given, reference)
        notes += failures
        if best is None:
            rows.append([name, "failed", "see below"])
        else:
            chosen[name] = best
    return ours, chosen, rows, notes


def measure(ours, chosen, given):
    """The results of all runs by name, the ratios of neighbouring runs by rival, and failures."""
    lines = {name: [] for name in ("ours", *chosen)}
    ratios, notes = {name: [] for name in chosen}, []
    for repeat in range(given.repeats):
        fastest = min((np.median(each) for each in ratios.values() if each), default=np.inf)
        for name, (setting, *_) in chosen.items():
            if ratios[name] and np.median(ratios[name]) > CONTENDS * fastest:
                continue
            try:
                beside = run(OURS, ours[0], given)
                line = run(RIVALS[name], setting, given)
            except Failure as failure:
                notes.append(f"{name}, repeat {repeat + 1}: {failure}")
                tell(notes[-1])
                continue
            lines["ours"].append(beside)
            lines[name].append(line)
            ratios[name].append(np.median(line["round_s"]) / np.median(beside["round_s"]))
            tell(f"repeat {repeat + 1}, {name}: {ratios[name][-1]:.2f} of ours")
    return lines, ratios, notes


def summarize(contenders, lines, ratios, given):
    """The content of --out: the rivals, the fastest first, and our rates."""
    medians = {name: float(np.median(each)) for name, each in ratios.items() if each}
    report = {
        "settings": {name: setting for name, (setting, *_) in contenders.items()},
        "checks": {name: line for name, (_, line, _) in contenders.items()},
        "errors": {name: error for name, (*_, error) in contenders.items()},
        "agrees": AGREES,
        "others": [name for name, (*_, error) in contenders.items() if not error < AGREES],
        "ratios": {name: medians[name] for name in sorted(medians, key=medians.get)},
        "runs": lines,
    }
    if medians:
        flops = work.useful_flops(work.WORKS[given.work], given.cohort) / 1e9
        report["gflops"] = flops / seconds_of(lines["ours"])
        report["gemm_gflops"] = float(np.median([line["gemm_gflops"] for line in lines["ours"]]))
    return report


def show(report, contenders, rows, given):
    """Prints the table, ours first and then the rivals by speed, and a conclusion."""
    ratios, lines = report["ratios"], report["runs"]
    ranked = {"ours": 1.0} | ratios if ratios else {}
    table = [
        row_of(name, lines[name], contenders[name], ratio, given) for name, ratio in ranked.items()
    ]
    print(f"{given.work}, cohort {given.cohort}, {CORES} cores\n")
    for row in (HEADS, ["---"] * len(HEADS), *table, *rows):
        print(f"| {' | '.join([*row, *[''] * (len(HEADS) - len(row))])} |")
    if ratios:
        useful, rate, fastest = report["gflops"], report["gemm_gflops"], next(iter(ratios))
        print(
            f"\nOurs does {useful:.1f} useful GFLOP/s, {useful / rate:.0%} of the {rate:.0f} of a "
            f"matrix product in the same process. The fastest rival, {fastest}, takes "
            f"{ratios[fastest]:.2f} times as long as ours (runs of a rival: "
            f"{', '.join(f'{name} {len(lines[name])}' for name in ratios)})."
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=work.WORKS, default="cnn")
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rounds", type=int, help=f"in a process, the first included: {ROUNDS}")
    parser.add_argument(
        "--repeats", type=int, default=5, help="processes of ours and of each rival"
    )
    parser.add_argument("--only", nargs="+", choices=RIVALS, default=list(RIVALS), metavar="RIVAL")
    parser.add_argument("--environments", type=Path, default=Path(".venv-peers"))
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of one process")
    parser.add_argument("--out", type=Path, help="a file for every line of every run, .json")
    given = parser.parse_args()
    given.rounds = given.rounds or ROUNDS[given.work]
    if given.rounds < 2:
        parser.error("--rounds must be at least 2, because the first one is measured separately")

    ours, chosen, rows, notes = choose(given)
    lines, ratios, more_notes = measure(ours, chosen, given)
    rows += [[name, "failed", "see below"] for name, each in ratios.items() if not each]
    notes += more_notes
    contenders = {"ours": ours} | chosen
    report = summarize(contenders, lines, ratios, given)
    report |= {"absent": {name: ": ".join(why) for name, *why in rows}, "notes": notes}
    if given.out:
        given.out.write_text(json.dumps(report, indent=1))
    show(report, contenders, rows, given)
    for note in notes:
        print(f"\n- {note}")
    if report["others"]:
        others = ", ".join(report["others"])
        raise SystemExit(f"params differ from ours, so the work is not the same: {others}")


if __name__ == "__main__":
    main()
