"""The claims in `experiments/papers`, how they are run, and their command and pages."""

import csv
import functools
import math
import subprocess
import sys
import tomllib

import claims
import pytest
import tomli_w
from claim_files import repeating, running
from claim_files.headlines import headline_table
from claim_files.measured import COLUMNS
from claim_files.pages import claim_page, overview_page, paper_page
from claim_files.reading import PAPERS, read_claim, read_row
from claim_files.verdicts import read_claims
from claim_helpers import HALF, write_claim, write_paper
from click.testing import CliRunner
from summary_helpers import rows

from fedjax_algos.core.options import options
from fedjax_algos.runs.studies.method import parse_spec
from fedjax_algos.runs.studies.settings import Settings

QUALITIES = [0.1, 0.5, 0.7, 0.65, 0.8, 0.75]
PLAIN = rows("fedavg", [QUALITIES], upload_bytes=5e5)


def with_column(name, values):
    return [row | {name: value} for row, value in zip(PLAIN, values, strict=True)]


CURVES = {
    "plain": with_column("train_loss", [2.3, 1.0, 0.5, 0.6, 0.3, 0.4]),
    "dice": with_column("test_dice_score", [0.2, 0.3, 0.1, 0.9, 0.4, 0.6]),
    "on the clock": with_column("simulated_seconds", [0, 2, 4, 6, 8, 100]),
    "diverged": rows("fedavg", [[*QUALITIES, 0.1]]),
}
CURVES["dice"][3]["test_loss"] = math.inf  # not finite, so neither the best nor at the target
CURVES["diverged"][-1]["test_loss"] = math.nan
DICE = {"metric": "test_dice_score"}


@pytest.mark.parametrize(
    ("curve", "measure", "expected"),
    [
        ("plain", {"first": "round", "target": 0.65}, "20"),
        ("plain", {"first": "upload_bytes", "target": 0.65, "scale": 1e6}, "10"),
        ("plain", {"first": "round", "target": 0.9}, ">50"),
        ("plain", {"best": True}, "80"),
        ("plain", {"last": 0.4}, "77.5"),
        ("plain", {"at": 20}, "70"),
        ("plain", {"at": 20, "column": "train_loss"}, "0.5"),
        ("dice", DICE | {"first": "round", "target": 0.5}, "50"),
        ("dice", DICE | {"best": True}, "60"),
        ("dice", DICE | {"at": 20, "column": "test_accuracy", "scale": 0.01}, "70"),
        ("on the clock", {"last": 0.5}, "75"),  # of the seconds
        ("on the clock", {"at": 7}, "65"),
        ("diverged", {"last": 0.2}, ""),
        ("diverged", {"best": True}, "80"),
        ("diverged", {"first": "round", "target": 0.7}, "20"),
    ],
)
def test_measures_of_a_run(curve, measure, expected):
    assert running.measured(CURVES[curve], **measure) == {("fedavg", 0): expected}


def test_a_reference_sets_the_target_on_each_seed():
    runs = rows("fedavg", [QUALITIES, [0.1, 0.2, 0.3]])
    runs += rows("other", [[0.1, 0.9], [0.1, 0.2, 0.29]])
    found = running.measured(runs, reference="fedavg", first="round")
    expected = {("fedavg", 0): "40", ("fedavg", 1): "20", ("other", 0): "10", ("other", 1): ">20"}
    assert found == expected
    other = with_column("test_dice_score", [0.0, 0.6, 0, 0, 0, 0])
    runs = CURVES["dice"] + [row | {"method": "other"} for row in other]
    found = running.measured(runs, reference="fedavg", first="round", **DICE)
    assert found == {("fedavg", 0): "50", ("other", 0): "10"}


@functools.cache
def of_papers():
    """Every claim with its verdicts."""
    return [judged for each in read_claims(PAPERS) for judged in each.claims]


def rows_of_papers():
    """Every judged row."""
    return [row for claim in of_papers() for row in claim.rows]


@pytest.mark.all
def test_every_program_makes_rows():
    for row in (each.row for own in rows_of_papers() for each in (own, *own.shown_by)):
        if row.program:
            assert callable(running.module_of(row.path.with_name(row.program)).rows)


FEDGBO = "table_7_equation_22", "table_8", "table_4_totals_dense"
FIGURES = "figure_1", "figure_20", "figure_21", "figure_22_groups", "figure_22_arrival"
READ = "table_1_spread", "table_1_code_sign_asynchronous", "table_3_baselines"
BUFFERED = "table_19_fedbuff", "table_19_fedbuff_exponential"
COUNTED = [("fedgbo", name) for name in (*FEDGBO, "why_table_7_sent140")]
COUNTED += [("fedcompass", name) for name in (*FIGURES, *READ, *BUFFERED)]
COUNTED += [("fedlga", "figure_4_tuned")]


@pytest.mark.parametrize(("paper", "name"), COUNTED)
def test_programs_that_train_nothing_make_the_same_values_again(paper, name):
    """The FedGBO paper's Tables IV, VII and VIII, timelines, and what reads other rows' values."""
    own = read_row(PAPERS / paper, name)
    program = running.module_of(own.path.with_name(own.program))
    made = program.rows(running.Run(own, tuple(range(own.num_seeds))))
    found = {tuple(str(value) for value in row) for row in made}
    with own.csv.open() as file:
        assert {tuple(row) for row in csv.reader(file)} - found == {tuple(COLUMNS)}


OTHER_DATA = ("CIFAR", "FEMNIST", "Sent140", "GLDv2", "iNaturalist", "StackOverflow", "Shakespeare")


@pytest.mark.all
def test_rows_name_what_stands_in_and_have_the_seeds_of_the_readme():
    """No row has the seeds that were added until its order was clear: 24 to 160."""
    for row in (judged.row for judged in rows_of_papers() if judged.row.settings):
        said = f"{row.claim} {row.printed}"
        small = row.settings.get("model", "").startswith("mlp") and "CNN" in said
        assert row.stand_ins or not (small or any(name in said for name in OTHER_DATA)), row
    seeds = {j.row.num_seeds for j in rows_of_papers() if j.measured and j.row.trains}
    assert seeds == {3, 5, 10, 12}
    assert all(path.stat().st_size < 2**20 for path in PAPERS.rglob("*.csv"))


def test_every_setting_is_one_of_compare():
    """Also those of the papers, which are not run here."""
    known, found = {*options(Settings), "methods"}, 0
    for path in PAPERS.glob("*/*.toml"):
        content = tomllib.loads(path.read_text())
        settings = content if path.name.startswith(("full_", "small_")) else content.get("settings")
        runs = [(settings or {}, content)]
        runs += [
            ((settings or {}) | row.get("settings", {}), row) for row in content.get("rows", ())
        ]
        for changed, own in runs:
            for case in own.get("cases", content.get("cases", [{}])):
                given = changed | case.get("settings", {})
                assert set(given) <= known, path
                assert all(map(parse_spec, given.get("methods", ())))
                found += "methods" in given
    assert found > 50


PROGRAM = """
def rows(run):
    for seed in run.seeds:
        for number, method in enumerate("ab"):
            cost = 50 + seed + 5 * seed * (1 - number) * (seed > 9) + 60 * number
            yield "", method, "rounds to 65%", seed, cost
"""


def command(*arguments):
    """What a command of the claims prints."""
    result = CliRunner().invoke(claims.cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_claim_and_the_pages_show_what_is_judged(tmp_path):
    """And count apart what trains nothing."""
    one = write_paper(tmp_path, without_claim={"Theorem 1": "a bound without numbers"})
    claim = write_claim(one, values=HALF, stand_ins=["digits for MNIST"])
    shown = command("show", write_claim(one, "ended", values={**HALF, "b": [">1", ">2", ">3"]}))
    assert "| b | > 2 ± 2.5 (0/3 reached) \\| 116 |" in shown  # as text, not as HTML
    (one / "ended.toml").unlink()
    shown = command("show", claim)
    assert shown.startswith(
        "## table_1\n\n**Table I: in order, on a stand-in.** A needs half of B's"
    )
    result = CliRunner().invoke(claims.cli, ["show", "fedlga/nothing"])
    assert (result.exit_code, "has no row 'nothing'" in result.output) == (2, True)
    write_claim(one, "figure_2_count", values=HALF, item="Figure 2", stand_ins=None, trains=False)
    many = {"case": HALF} | {key: {"a": HALF["b"], "b": HALF["a"]} for key in "1234567"}
    write_claim(one, "table_1_cases", values=many, paper=None, reason="One.", shown_by=["why"])
    write_claim(one, "why", values=HALF, of="table_1_cases", claim="At rate 1 A is first.")
    papers = read_claims(tmp_path)
    overview = overview_page(papers)
    for line in (
        "| in order, on a stand-in | 1 | 0 |\n| not reproduced | 1 | 0 |\n",
        "| reproduced | 0 | 1 |\n",
        "| digits for MNIST | [in order, on a stand-in](claims/one.md#table_1) |\n",
    ):
        assert line in overview
    page = paper_page(papers[0])
    for text in (
        "**Table I: in order, on a stand-in.** A needs half of B's rounds. ([table_1",
        "| a | 55 ± 12 \\| 60 |\n| b | 115 ± 12 \\| 116 |\n",
        "**Figure 2: not run.** ",
        "\n1 of 8 checks hold.\n\n- DOES NOT HOLD: rounds to 65%, 1: a < b",
        "\n\nOne.\n\n### why\n\n**Experiment.** At rate 1 A is first.",
    ):
        assert text in page


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"stand_ins": []}, "the paper's data, model and setting"),
        ({"stand_ins": list("abc")}, "a; more"),
        ({"own": True, "printed": "A claim of our own."}, "a setting of our own"),
        (
            {"chosen": ["a rate", "a sign"]},
            "the paper's data and model; chosen here: a rate, a sign",
        ),
        ({"trains": False, "stand_ins": []}, "nothing is trained"),
    ],
)
def test_the_line_of_a_claim_names_where_it_was_seen(tmp_path, changes, expected):
    one = write_paper(tmp_path)
    write_claim(one, values=HALF, **changes)
    assert f" | {expected} | [" in overview_page(read_claims(tmp_path))


QUESTIONS = {
    "question": "Is A faster than B?",
    "comparisons": [
        {"row": "one/table_1", "lower": "a", "than": "b", "on": "digits", "tuned": "yes"},
        {
            "row": "one/table_1",
            "lower": "b",
            "than": "a",
            "on": "x",
            "tuned": "no",
            "note": "or so",
        },
        {"row": "one/table_1", "lower": "a", "than": "a", "on": "y", "tuned": "no"},
        {"row": "one/table_1", "lower": "a", "than": "b", "on": "z", "tuned": "no", "run": False},
    ],
}


def test_the_site_lists_the_page_of_each_paper():
    index = (PAPERS.parents[1] / "docs" / "index.md").read_text()
    names = [each.parent.name for each in PAPERS.glob("*/paper.toml")]
    assert [name for name in names if f" <claims/{name}>\n" not in index] == []


def test_the_readme_has_the_headlines():
    assert f"\n{headline_table()}\n" in (PAPERS / "README.md").read_text()


def test_headlines_are_computed_from_the_values(tmp_path):
    write_paper(tmp_path)
    file, comparisons = tmp_path / "headlines.toml", QUESTIONS["comparisons"]
    for comparison in comparisons:
        comparison["measure"] = "rounds to 65%"
    file.write_text(tomli_w.dumps({"questions": [QUESTIONS]}))
    lines = headline_table(file).splitlines()[-4:]
    ratio = "ratio 2.1 from 1.73 to 2.54"
    assert lines[0] == f"| Is A faster than B? | b: 1.93 | {ratio} | 3 | digits | yes | yes |"
    assert [line.split(" | ")[-1] for line in lines[1:]] == [
        "no, or so |",
        "not clear |",
        "not known |",
    ]
    assert lines[1].startswith("|  | a: 0.517 | ratio 0.477")
    assert "| b: 1.93 | not run yet | - | z |" in lines[3]
    comparisons[0]["than"] = "c"
    file.write_text(tomli_w.dumps({"questions": [QUESTIONS]}))
    with pytest.raises(ValueError, match=r"one/table_1 has no values of .*'c'"):
        headline_table(file)


ROWS = [
    {"name": "first", "claim": "A is first."},
    {"name": "second", "claim": "B is first.", "paper": []}
    | {"orders": [{"measure": "rounds to 65%", "lower": "b", "than": ["a"]}]},
]


def test_a_claim_shows_its_rows_together(tmp_path):
    one = write_paper(tmp_path)
    path = write_claim(one, values=HALF, stand_ins=["digits for MNIST"], rows=ROWS)
    shown = command("show", path)
    assert shown.startswith("## table_1\n\n**Table I: 1 of 2 rows hold, on a stand-in.**")
    for text in ("### first\n\n**In order, on a stand-in.**", "\nDifferences: a smaller model."):
        assert text in shown
    page = paper_page(read_claims(tmp_path)[0])
    for text in (
        "| A is first. | [in order, on a stand-in](#first) |\n| B is first. | [open, on a stand-",
        "### second\n\n**Open, on a stand-in.** B is first.",
    ):
        assert text in page
    assert page.count("| a | 55 ± 12 \\| 60 |") == 1  # they have the same runs
    assert "B is first" not in command("show", path.with_name("first"))


def test_rows_with_the_same_runs_print_one_value_for_a_cell(tmp_path):
    """Equal values may be repeated; else the table would have the value of another column."""
    own = [{"measure": "rounds to 65%", "values": {"a": 60, "b": 71}}]
    again = ROWS[1] | {"paper": [{"measure": "rounds to 65%", "values": {"b": 116}}]}
    path = write_claim(tmp_path, values=HALF, rows=[ROWS[0], again])
    assert command("show", path).count("| a | 55 ± 12 \\| 60 |") == 1
    write_claim(tmp_path, values=HALF, rows=[ROWS[0], ROWS[1] | {"paper": own}])
    with pytest.raises(ValueError, match=r"table_1.toml, second: .*'b'\) is 71, and 116 in a row"):
        claim_page(read_claim(path))


def test_new_seeds_are_run_elsewhere_and_both_verdicts_are_shown(tmp_path):
    """Of a claim whose order holds on the seeds from 0, and not on those from 10."""
    path = write_claim(tmp_path, values=None, seeds=3, paper=None)
    path.with_suffix(".py").write_text(PROGRAM)
    command("run", path)
    before, claim, new = path.with_suffix(".csv").read_text(), read_claim(path), tmp_path / "new"
    arguments = ("new-seeds", path, "--seeds", "20:30", "--out", new)
    shown = command(*arguments)
    for text in ("CHANGED", "3 seeds  in order -> open", "1 of 1 verdicts changed"):
        assert text in shown
    lines = (new / tmp_path.name / "table_1.csv").read_text().splitlines()[1:]
    assert {line.split(",")[3] for line in lines} == {"20", "21", "22"}
    assert path.with_suffix(".csv").read_text() == before
    path.with_suffix(".py").write_text("")  # what is there is judged and not run again
    assert command(*arguments) == shown
    count = write_claim(tmp_path, "count", values=HALF, stand_ins=None, trains=False)
    for own, seeds, named in (
        (claim, (3, 4, 5), r"has seeds \(20, 21, 22\)"),
        (claim, (7, 8), "has 3 seeds"),
        (read_claim(count), (7, 8, 9), "trains nothing"),
    ):
        with pytest.raises(ValueError, match=named):
            repeating.repeat(own, seeds, new)


@pytest.mark.all
def test_the_draw_and_the_list_are_of_all_claims():
    known = {judged.claim.name: judged.claim for judged in of_papers()}
    draw = "draw", "--number", "40", "--seed", "1"
    names = command(*draw, "--names").split()
    assert [line.split()[-1] for line in command(*draw).splitlines()[:40]] == names
    assert len(set(names)) == 40
    assert command(*draw, "--names", "--seed", "2").split() != names
    assert all(known[name].trained for name in names)
    with pytest.raises(ValueError, match="number=400"):
        repeating.draw(list(known.values()), 400, seed=1)
    rows = len(rows_of_papers())
    assert command("check") == f"{len(known)} claims with {rows} rows are read and judged\n"
    listed, trained, nothing = command("list").split("\n\n")
    several = [judged for judged in of_papers() if len(judged.rows) > 1]
    assert len(listed.split("\n")) == len(known) + sum(len(judged.rows) for judged in several)
    lines = [*trained.splitlines()[1:], *nothing.splitlines()[1:]]
    assert sum(int(line.split()[0]) for line in lines) == rows


STEPS = {"five": 5, "two": 2, "again": 5}
RATES = {"fedavg": "0.1", "slow": "0.001"}
DIGITS = {  # a claim that needs no files; equal cases share their runs
    "stand_ins": ["digits for images"],
    **dict.fromkeys(("program", "seeds", "paper")),
    "orders": [{"measure": "best accuracy (%)", "higher": "fedavg", "than": ["slow"]}],
    "cases": [{"name": n, "settings": {"local_steps": steps}} for n, steps in STEPS.items()],
    "settings": {"rounds": 12, "eval_every": 4, "seeds": 3, "clients": 10, "cohort": 5}
    | {"partition": "iid", "model": "linear", "batch_size": 5}
    | {"methods": [f"fedavg:client_learning_rate={rate}" for rate in RATES.values()]},
    "measures": {
        "best accuracy (%)": {"best": True},
        "MB to 50%": {"first": "bytes", "target": 0.5, "scale": 1e6},
    },
    "labels": {f"fedavg client_learning_rate={rate}": name for name, rate in RATES.items()},
}


@pytest.mark.nightly
def test_a_claim_is_run_from_its_file(here):
    path = write_claim(here, "digits", **DIGITS)
    line = [sys.executable, PAPERS / "claims.py", "run", path]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "**Table I: in order, on a stand-in.**" in done.stdout
    assert len(list(here.glob("results/papers/*/"))) == 2
    found = list(csv.DictReader((here / "digits.csv").read_text().splitlines()))
    assert len(found) == 3 * 2 * 3 * 2  # cases, methods, seeds, measures
    assert {row["method"] for row in found} == {"fedavg", "slow"}
    cost = next(row["value"] for row in found if row["measure"].startswith("MB"))
    rounds = float(cost) * 1e6 / (2 * 5 * 4 * 650)  # up and down, five clients, floats of the model
    assert rounds in (4, 8, 12)
    five, two, again = ([r["value"] for r in found if r["case"] == name] for name in STEPS)
    assert five == again != two
    shown = command("new-seeds", path, "--seeds", "7:11", "--out", here / "new")
    assert "3 seeds  in order, on a stand-in -> " in shown
    assert len(list(here.glob("results/papers/*/"))) == 4
    lines = (here / "new" / here.name / "digits.csv").read_text().splitlines()
    assert {row["seed"] for row in csv.DictReader(lines)} == {"7", "8", "9"}
