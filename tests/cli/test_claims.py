"""`claims`: the table of all claims, one claim, JSON, and the page."""

import json

import pytest
from claim_helpers import HALF, NOT_RUN, write_claim, write_paper

OVERVIEW = """\
paper  item      verdict     claim
one    Table I   reproduced  table_1
one    Figure 2  not run     figure_2

   1 reproduced: every check holds"""
SWAPPED = {"a": HALF["b"], "b": HALF["a"]}
OTHER = {"with_results": {"Table I": "rounds"}}


def other_paper(folder):
    """A paper beside the first one, whose claim is not reproduced."""
    own = write_paper(folder, "other", **OTHER)
    (own / "figure_2.toml").unlink()
    reason = {"reason": "The *rate*.", "shown_by": ["why_table_1"]}
    write_claim(own, values=SWAPPED, **reason)
    write_claim(own, "why_table_1", values=HALF, of="table_1", claim="At rate 1 A is first.")


def test_the_overview_has_every_claim_and_counts_verdicts(command, here):
    write_paper(here)
    assert command("claims", here).startswith(OVERVIEW)
    other_paper(here)
    shown = command("claims", here)
    assert "other  Table I   not reproduced  table_1" in shown
    assert "   1 not reproduced: a check does not hold, and an experiment shows" in shown
    assert "   0 open: " in shown
    assert command("claims", here, "--paper", "one").startswith(OVERVIEW)


def test_the_folder_is_that_of_the_checkout_by_default(command, here, monkeypatch):
    write_paper(here / "experiments" / "papers")
    inside = here / "docs" / "pages"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    assert command("claims").startswith(OVERVIEW)


def test_one_claim_is_shown_with_its_numbers(command, here):
    path = write_claim(here, values=HALF)
    shown = command("claims", path)
    assert shown.startswith("table_1 (Table I): reproduced\nA needs half of B's rounds.\n")
    assert "Printed: a large setting\nDifferences: a smaller model\n" in shown
    assert "method   rounds to 65%\na         55 ± 12 | 60\nb       115 ± 12 | 116\n" in shown
    compared = "a < b (55 ± 12 and 115 ± 12, ratio 2.1 from 1.73 to 2.54)"
    assert f"holds: rounds to 65%: {compared}; the paper's 1.93\n" in shown
    assert shown.endswith("A needs fewer rounds.\n")


def test_json_has_everything(command, here):
    write_paper(here)
    other_paper(here)
    write_claim(here / "one", values={**HALF, "a": [50, ">200", ""]})
    one, other = json.loads(command("claims", here, "--json"))
    assert (one["title"], one["without_results"]) == ("A paper", {"Table II": "notation"})
    first, second = one["claims"]
    assert (first["verdict"], second["verdict"], second["needs"]) == ("open", "not run", "a GPU")
    assert first["path"] == "table_1.toml"
    quantity = {"measure": "rounds to 65%", "case": "", "method": "a"}
    seen = {"seeds": [0, 1, 2], "values": [50, 200, None], "censored": [False, True, False]}
    assert first["measured"][0] == quantity | seen
    assert first["paper"][0] == quantity | {"value": 60}
    assert [check["holds"] for check in first["checks"]] == [False]
    (claim,) = other["claims"]
    assert claim["verdict"] == "not reproduced"
    assert [each["verdict"] for each in claim["shown_by"]] == ["reproduced"]


def test_a_page_has_every_claim_of_all_papers(command, here):
    write_paper(here)
    other_paper(here)
    page = command("claims", here, "--markdown")
    assert "| verdict | one | other |\n| --- | --- | --- |\n| reproduced | 1 | 0 |\n" in page
    link = "[reproduced](claims/one.md#table_1)"
    assert f"| Table I | A needs half of B's rounds. | {link} |\n" in page
    assert "[not run](claims/one.md#figure_2)" in page
    assert "[not reproduced](claims/other.md#table_1)" in page
    assert "Without results to check: Table II (notation)." in page


def test_the_page_of_a_paper_has_numbers_and_experiments(command, here):
    write_paper(here)
    page = command("claims", here, "--paper", "one", "--markdown")
    file = "([table_1.toml](../../experiments/papers/one/table_1.toml))"
    begin = f"## table_1\n\n**Table I, reproduced.** A needs half of B's rounds. {file}\n"
    assert begin in page
    assert "| a | 55 ± 12 \\| 60 |\n| b | 115 ± 12 \\| 116 |\n" in page
    assert "\n- holds: rounds to 65%: a < b (" in page
    assert "\n\nA needs fewer rounds.\n" in page
    assert "## figure_2\n\n**Figure 2, not run.** " in page
    assert "\n\nIt needs: a GPU\n" in page
    other_paper(here)
    page = command("claims", here, "--paper", "other", "--markdown")
    assert "- DOES NOT HOLD: rounds to 65%: a < b (" in page
    assert "\n\nThe *rate*.\n\n### why_table_1\n\n**Experiment.** At rate 1 A is first." in page


def test_a_page_lists_only_failing_checks_if_there_are_many(command, here):
    write_paper(here)
    values = {f"case {i}": HALF for i in range(7)} | {"last": SWAPPED}
    write_claim(here / "one", values=values, paper=None)
    page = command("claims", here, "--paper", "one", "--markdown")
    assert "\n7 of 8 checks hold.\n\n- DOES NOT HOLD: rounds to 65%, last: a < b" in page
    assert "- holds:" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no folder 'experiments/papers' in"),
        (("nowhere",), "'nowhere' has no paper.toml in its folders; name a folder of papers"),
        (("nowhere.toml",), "'nowhere.toml' cannot be read (No such file or directory)"),
        (("papers", "--json", "--markdown"), "--json and --markdown are both given; leave one"),
        (("papers", "--paper", "two"), "unknown paper 'two'"),
        (("papers/one/table_1.toml", "--json"), "is one claim, which has no options; leave them"),
        (("papers/one/broken.toml",), "is no TOML file: "),
        (("papers/one/deep.toml",), "is no TOML file: it is nested too deeply"),
    ],
)
def test_wrong_calls_are_refused(refused, here, arguments, message):
    own = write_paper(here / "papers")
    (own / "broken.toml").write_text("a = \n")
    (own / "deep.toml").write_text("a = " + "[" * 5000)
    assert message in refused("claims", *arguments)


def test_a_claim_that_was_not_run_says_what_it_needs(command, here):
    shown = command("claims", write_claim(here, needs="a GPU for a day", **NOT_RUN))
    assert shown.startswith("table_1 (Table I): not run\n")
    assert "Needs: a GPU for a day\n" in shown
