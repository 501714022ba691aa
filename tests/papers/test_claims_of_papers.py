"""The claims of the papers in `experiments/papers`, and how they are run."""

import csv
import math
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from claim_files import running
from claim_files.reading import PAPERS, read_claim
from claim_files.verdicts import read_claims

from fedjax_algos.core.options import options
from fedjax_algos.runs.method import parse_spec
from fedjax_algos.runs.settings import Settings

DIGITS = """\
item = "Table I"
claim = "A tenth of the rate needs more rounds."
printed = "none"
stand_ins = ["digits for images"]
minutes = 0.5
seen = "FedAvg is faster at the larger rate."

[[orders]]
measure = "best accuracy (%)"
higher = "fedavg"
than = ["slow"]

[settings]
rounds = 12
eval_every = 4
seeds = 3
clients = 10
cohort = 5
partition = "iid"
model = "linear"
batch_size = 5
methods = ["fedavg:client_learning_rate=0.1", "fedavg:client_learning_rate=0.001"]

[[cases]]
name = "K = 5"
settings = {local_steps = 5}

[[cases]]
name = "K = 2"
settings = {local_steps = 2}

[[cases]]
name = "K = 5, again"
settings = {local_steps = 5}

[measures]
"best accuracy (%)" = {best = true}
"MB to 50%" = {first = "bytes", target = 0.5, scale = 1e6}

[labels]
"fedavg client_learning_rate=0.1" = "fedavg"
"fedavg client_learning_rate=0.001" = "slow"
"""


def rows(accuracies, method="fedavg", seed=0, **columns):
    return [
        {"method": method, "seed": seed, "round": 10 * i, "test_accuracy": q, "test_loss": 1.0}
        | {"upload_bytes": 5e6 * i}
        | {name: values[i] for name, values in columns.items()}
        for i, q in enumerate(accuracies)
    ]


def value_of(curve, **measure):
    (value,) = running.measured(curve, **measure).values()
    return value


CURVE = [0.1, 0.5, 0.7, 0.65, 0.8, 0.75]


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ({"first": "round", "target": 0.65}, "20"),
        ({"first": "upload_bytes", "target": 0.65, "scale": 1e6}, "10"),
        ({"first": "round", "target": 0.9}, ">50"),
        ({"best": True}, "80"),
        ({"last": 0.2}, "75"),
        ({"last": 0.4}, "77.5"),
        ({"at": 20}, "70"),
        ({"at": 29}, "70"),
        ({"at": 20, "column": "train_loss"}, "0.5"),
        ({"last": 0.4, "column": "train_loss"}, "0.35"),
    ],
)
def test_measures_of_a_run(measure, expected):
    curve = rows(CURVE, train_loss=[2.3, 1.0, 0.5, 0.6, 0.3, 0.4])
    assert value_of(curve, **measure) == expected


def test_measures_of_another_metric():
    dice = {"metric": "test_dice_score"}
    curve = rows(CURVE, test_dice_score=[0.2, 0.3, 0.1, 0.9, 0.4, 0.6])
    curve[3]["test_loss"] = math.inf  # not finite, and so neither the best nor at the target
    assert value_of(curve, **dice, first="round", target=0.5) == "50"
    assert value_of(curve, **dice, best=True) == "60"
    assert value_of(curve, **dice, last=0.4) == "50"
    assert value_of(curve, **dice, at=20, column="test_accuracy", scale=0.01) == "70"
    other = rows(CURVE, "other", test_dice_score=[0.0, 0.6] + [0] * 4)
    found = running.measured(curve + other, reference="fedavg", first="round", **dice)
    assert found == {("fedavg", 0): "50", ("other", 0): "10"}


def test_the_end_of_a_run_on_the_virtual_clock_is_in_seconds():
    curve = rows(CURVE, simulated_seconds=[0, 2, 4, 6, 8, 100])
    assert value_of(curve, last=0.5) == "75"
    assert value_of(curve, at=7) == "65"


def test_a_run_that_has_diverged_has_no_quality_at_its_end():
    curve = rows([*CURVE, 0.1])
    curve[-1]["test_loss"] = math.nan
    assert value_of(curve, last=0.2) == ""
    assert value_of(curve, best=True) == "80"
    assert value_of(curve, first="round", target=0.9) == ""
    assert value_of(curve, first="round", target=0.7) == "20"


def test_a_reference_sets_the_target_on_each_seed():
    runs = [
        *rows(CURVE),
        *rows([0.1, 0.2, 0.3], seed=1),
        *rows([0.1, 0.9], "other"),
        *rows([0.1, 0.2, 0.29], "other", 1),
    ]
    found = running.measured(runs, reference="fedavg", first="round")
    expected = {("fedavg", 0): "40", ("fedavg", 1): "20", ("other", 0): "10", ("other", 1): ">20"}
    assert found == expected


@pytest.fixture(scope="module")
def papers():
    return read_claims(PAPERS)


def test_every_program_makes_rows(papers):
    judged = [j for each in papers for j in each.claims if j.claim.program]
    judged += [experiment for j in judged for experiment in j.shown_by if experiment.claim.program]
    assert judged
    for claim in (each.claim for each in judged):
        assert callable(running.module_of(claim.path.with_name(claim.program)).rows), claim.path


FEDGBO = "table_7", "table_8", "table_4_totals", "table_4_totals_sent140", "why_table_7_sent140"
FIGURES = "figure_1", "figure_20", "figure_21", "figure_22", "figure_22_arrival"
COUNTED = [f"fedgbo/{name}" for name in FEDGBO] + [f"fedcompass/{name}" for name in FIGURES]


@pytest.mark.parametrize("name", COUNTED)
def test_programs_that_train_nothing_make_the_same_values_again(name):
    """The FedGBO paper's Tables IV, VII and VIII, and the FedCompass paper's timelines."""
    claim = read_claim(PAPERS / f"{name}.toml")
    program = running.module_of(claim.path.with_name(claim.program))
    found = [[str(value) for value in row] for row in program.rows(running.Run(claim, (0,)))]
    with claim.csv.open() as file:
        assert [*csv.reader(file)][1:] == found


def test_errors_of_codecs_are_those_of_their_formulas():
    """One draw: the relative error of an entry's rounding varies by a few percent."""
    folder = PAPERS / "compression"
    errors = running.module_of(folder / "mean_errors.py")
    errors.DRAWS = 1
    expected = {"DRIVE": 0.5708, "rotated k-level": 13.46}
    for name, codec in errors.ONE_BIT.items():
        of_one, of_mean = errors.errors(codec, seed=7)
        assert of_one == pytest.approx(expected[name], rel=0.1)
        assert of_mean == pytest.approx(expected[name] / errors.CLIENTS, rel=0.1)


def test_the_rate_of_least_squares_is_tuned_on_other_problems():
    """And its minimum is where the mean gradient of all clients is 0."""
    least = running.module_of(PAPERS / "compression" / "least_squares.py")
    assert min(least.TUNING_SEEDS) >= 1000
    a, b, best = least.problem_of(3)
    gradients = np.einsum("cij,ci->cj", a, np.einsum("cij,j->ci", a, best) - b)
    np.testing.assert_allclose(gradients.sum(0), 0, atol=1e-9)
    assert np.abs(gradients).max() > 1  # clients differ
    hessians = np.einsum("cij,cik->cjk", a, a) / least.ENTRIES
    np.testing.assert_allclose(np.linalg.eigvalsh(hessians)[:, [0, -1]], [[1, 10]] * 10)
    apart = {name: least.distances(f, (3,), [0.05], 40)[0, 0] for name, f in least.FEEDBACK.items()}
    assert apart["top-1, EF21"][-1] < 1e-3 * apart["top-1"][-1]


OTHER_DATA = ("CIFAR", "FEMNIST", "Sent140", "GLDv2", "iNaturalist", "StackOverflow", "Shakespeare")


def test_a_claim_on_other_data_or_another_network_names_what_stands_in(papers):
    found = 0
    for claim in (j.claim for each in papers for j in each.claims):
        said = f"{claim.claim} {claim.printed}"
        small = claim.settings.get("model", "").startswith("mlp") and "CNN" in said
        if claim.settings and (small or any(name in said for name in OTHER_DATA)):
            assert claim.stand_ins, claim.path
            found += 1
    assert found > 60


def test_numbers_of_seeds_are_those_of_the_readme(papers):
    """No claim has the seeds that were added until its order was clear: 24 to 160."""
    claims = [j.claim for each in papers for j in each.claims if j.measured]
    assert {claim.num_seeds for claim in claims if claim.trains} == {3, 5, 10, 12}


def test_every_setting_is_one_of_compare():
    """Also those of the papers, which are not run here."""
    known = {*options(Settings), "methods"}
    found = 0
    for path in PAPERS.glob("*/*.toml"):
        content = tomllib.loads(path.read_text())
        if path.name == "paper.toml" or (
            "settings" not in content and not path.name.startswith(("full_", "small_"))
        ):
            continue
        settings = content.get("settings", content)
        for case in content.get("cases", [{}]):
            given = settings | case.get("settings", {})
            assert set(given) <= known, path
            for method in given["methods"]:
                parse_spec(method)
            found += 1
    assert found > 50


def test_results_are_small():
    sizes = {path: path.stat().st_size for path in PAPERS.rglob("*.csv")}
    assert all(size < 2**20 for size in sizes.values())


@pytest.mark.all
def test_a_claim_is_run_from_its_file(tmp_path):
    """On digits, so that it needs no files; equal cases share their runs."""
    path = tmp_path / "digits.toml"
    path.write_text(DIGITS)

    def command(name, *arguments):
        line = [sys.executable, PAPERS / "claims.py", name, path, *arguments]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, len(list((tmp_path / "results" / "papers").glob("*/")))

    shown, folders = command("run")
    assert "digits (Table I): in order, on a stand-in" in shown
    found = list(csv.DictReader((tmp_path / "digits.csv").open()))
    assert len(found) == 3 * 2 * 3 * 2  # cases, methods, seeds, measures
    assert {row["method"] for row in found} == {"fedavg", "slow"}
    cost = next(row["value"] for row in found if row["measure"].startswith("MB"))
    rounds = float(cost) * 1e6 / (2 * 5 * 4 * 650)  # up and down, five clients, floats of the model
    assert rounds in (4, 8, 12)
    assert folders == 2
    first, again = (
        [r["value"] for r in found if r["case"] == "K = 5" + e] for e in ("", ", again")
    )
    assert first == again
    shown, folders = command("new-seeds", "--seeds", "7:11", "--out", tmp_path / "new")
    assert "3 seeds  in order, on a stand-in -> " in shown
    with (tmp_path / "new" / tmp_path.name / "digits.csv").open() as file:
        assert {row["seed"] for row in csv.DictReader(file)} == {"7", "8", "9"}
    assert folders == 4
