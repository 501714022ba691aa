"""The command of the claims, `experiments/papers/claims.py`, its pages, and repeated runs."""

import claims
import pytest
from claim_files import repeating, verdicts
from claim_files.pages import overview_page, paper_page
from claim_files.reading import read_claim
from claim_files.verdicts import read_claims
from claim_helpers import HALF, NOT_RUN, write_claim, write_paper
from click.testing import CliRunner

SWAPPED = {"a": HALF["b"], "b": HALF["a"]}
OTHER = {"with_results": {"Table I": "rounds"}}
PROGRAM = """
def rows(run):
    for seed in run.seeds:
        for number, method in enumerate("ab"):
            cost = 50 + seed + 5 * seed * (1 - number) * (seed > 9) + 60 * number
            yield "", method, "rounds to 65%", seed, cost
"""


def command(*arguments):
    result = CliRunner().invoke(claims.cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def other_paper(folder):
    """A paper beside the first one, whose claim is not reproduced."""
    own = write_paper(folder, "other", **OTHER)
    (own / "figure_2.toml").unlink()
    reason = {"reason": "The *rate*.", "shown_by": ["why_table_1"]}
    write_claim(own, values=SWAPPED, **reason)
    write_claim(own, "why_table_1", values=HALF, of="table_1", claim="At rate 1 A is first.")


def test_one_claim_is_shown_with_its_numbers(tmp_path):
    path = write_claim(tmp_path, values=HALF, stand_ins=["digits for MNIST"])
    shown = command("show", path)
    assert shown.startswith("table_1 (Table I): in order, on a stand-in\nA needs half of B's")
    assert "\nPrinted: a large setting\nStand-ins: digits for MNIST\n" in shown
    assert "method   rounds to 65%\na         55 ± 12 | 60\nb       115 ± 12 | 116\n" in shown
    compared = "a < b (55 ± 12 and 115 ± 12, ratio 2.1 from 1.73 to 2.54; the paper's 1.93)"
    assert f"holds: rounds to 65%: {compared}\n" in shown
    assert shown.endswith("A needs fewer rounds.\n")
    shown = command("show", write_claim(tmp_path, needs="a GPU for a day", **NOT_RUN))
    assert shown.startswith("table_1 (Table I): not run\n")
    assert "Needs: a GPU for a day\n" in shown


def test_the_page_of_all_papers_names_stand_ins_and_counts_what_trains_apart(tmp_path):
    write_paper(tmp_path, without_claim={"Theorem 1": "a bound without numbers"})
    other_paper(tmp_path)
    write_claim(tmp_path / "one", values=HALF, stand_ins=["digits for MNIST"])
    count = {"item": "Figure 2", "stand_ins": None, "trains": False}
    write_claim(tmp_path / "one", "figure_2_count", values=HALF, **count)
    page = overview_page(read_claims(tmp_path))
    trained, nothing = page.split("Claims that train nothing:")
    assert "| in order, on a stand-in | 1 | 0 |\n| not reproduced | 0 | 1 |\n" in trained
    assert "| reproduced | 1 | 0 |\n" in nothing
    assert "| reproduced |" not in trained
    link = "[in order, on a stand-in](claims/one.md#table_1)"
    line = f"| Table I | A needs half of B's rounds. | digits for MNIST | {link} |\n"
    assert line in page
    assert "| nothing is trained | [reproduced](claims/one.md#figure_2_count) |" in page
    assert "| - | [not run](claims/one.md#figure_2) |" in page
    assert "Results without a claim:\n\n- Theorem 1: a bound without numbers.\n" in page
    assert "Without results to check:\n\n- Table II: notation.\n" in page


def test_the_page_of_a_paper_has_numbers_and_experiments(tmp_path):
    write_paper(tmp_path)
    changed = {"stand_ins": ["digits for MNIST"], "changed": "The rate."}
    write_claim(tmp_path / "one", values=HALF, **changed)
    other_paper(tmp_path)
    one, other = map(paper_page, read_claims(tmp_path))
    file = "([table_1.toml](../../experiments/papers/one/table_1.toml))"
    begin = f"**Table I, in order, after a change.** A needs half of B's rounds. {file}"
    assert f"{begin}\n\nStand-ins: digits for MNIST.\n\nChanged after a miss: The rate.\n" in one
    assert "| a | 55 ± 12 \\| 60 |\n| b | 115 ± 12 \\| 116 |\n" in one
    assert "\n- holds: rounds to 65%: a < b (" in one
    assert "## figure_2\n\n**Figure 2, not run.** " in one
    assert "\n\nIt needs: a GPU\n" in one
    assert "- DOES NOT HOLD: rounds to 65%: a < b (" in other
    assert "\n\nThe *rate*.\n\n### why_table_1\n\n**Experiment.** At rate 1 A is first." in other


def test_a_page_lists_only_failing_checks_if_there_are_many(tmp_path):
    write_paper(tmp_path)
    values = {f"case {i}": HALF for i in range(7)} | {"last": SWAPPED}
    write_claim(tmp_path / "one", values=values, paper=None)
    page = paper_page(read_claims(tmp_path)[0])
    assert "\n7 of 8 checks hold.\n\n- DOES NOT HOLD: rounds to 65%, last: a < b" in page
    assert "- holds:" not in page


@pytest.fixture
def repeated(tmp_path):
    """A claim whose order holds on the seeds from 0, and not on those from 10."""
    path = write_claim(tmp_path, values=None, seeds=3, paper=None)
    path.with_suffix(".py").write_text(PROGRAM)
    command("run", path)
    return path


def test_new_seeds_are_run_elsewhere_and_both_verdicts_are_shown(repeated, tmp_path):
    before = repeated.with_suffix(".csv").read_text()
    arguments = ("new-seeds", repeated, "--seeds", "20:30", "--out", tmp_path / "new")
    shown = command(*arguments)
    assert "CHANGED" in shown
    assert "3 seeds  in order -> open" in shown
    assert "1 of 1 verdicts changed" in shown
    written = tmp_path / "new" / tmp_path.name / "table_1.csv"
    seeds = {line.split(",")[3] for line in written.read_text().splitlines()[1:]}
    assert seeds == {"20", "21", "22"}
    assert repeated.with_suffix(".csv").read_text() == before
    repeated.with_suffix(".py").write_text("")  # what is there is judged and not run again
    assert command(*arguments) == shown
    with pytest.raises(ValueError, match=r"has seeds \(20, 21, 22\); name another folder"):
        repeating.repeat(read_claim(repeated), (3, 4, 5), tmp_path / "new")


def test_too_few_seeds_and_claims_that_train_nothing_are_refused(repeated, tmp_path):
    claim = read_claim(repeated)
    with pytest.raises(ValueError, match="has 3 seeds; give as many"):
        repeating.repeat(claim, (7, 8), tmp_path / "new")
    path = write_claim(tmp_path, "count", values=HALF, stand_ins=None, trains=False)
    with pytest.raises(ValueError, match="trains nothing here"):
        repeating.repeat(read_claim(path), (7, 8, 9), tmp_path / "new")


def test_the_draw_and_the_list_are_of_all_claims():
    shown = command("draw", "--number", "40", "--seed", "1")
    names = [line.split()[-1] for line in shown.splitlines()[:40]]
    assert len(set(names)) == 40
    assert command("draw", "--number", "40", "--seed", "1", "--names").split() == names
    assert command("draw", "--number", "40", "--seed", "2", "--names").split() != names
    known = {j.claim.name: j.claim for each in read_claims() for j in each.claims}
    assert all(known[name].trains and not known[name].needs for name in names)
    with pytest.raises(ValueError, match=r"number=400 is more than the \d+ claims"):
        repeating.draw(list(known.values()), 400, seed=1)
    number = sum(len(each.claims) for each in read_claims())
    assert command("check") == f"{number} claims are read and judged\n"
    listed, trained, nothing = command("list").split("\n\n")
    assert len(listed.split("\n")) == number
    lines = [*trained.splitlines()[1:], *nothing.splitlines()[1:]]
    counts = [int(line.split()[0]) for line in lines]
    assert len(counts) == 2 * len(verdicts.VERDICTS)
    assert sum(counts) == number


def test_a_wrong_name_is_refused():
    result = CliRunner().invoke(claims.cli, ["show", "fedlga/nothing"])
    assert result.exit_code == 2
    assert "nothing.toml does not exist; `list` has the names" in result.output
