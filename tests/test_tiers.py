"""Which tests each tier runs, tried on a suite of three tests."""

import shutil
import subprocess
import sys

import pytest
from helpers import CASES, ROOT, kind_of, tiers

TESTS = """
import pytest

def test_quick():
    pass

@pytest.mark.all
def test_of_ci():
    pass

@pytest.mark.nightly
def test_of_the_night():
    pass
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    (folder / "tests").mkdir()
    (folder / "tests/test_it.py").write_text(TESTS)
    for name in ("conftest.py", "costs.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    shutil.copy(ROOT / "setup.cfg", folder)
    return folder


@pytest.mark.all
@pytest.mark.skipif(not (ROOT / "setup.cfg").exists(), reason="it is not in this copy")
@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        (("--numprocesses", "2"), "1 passed"),
        (("--numprocesses", "0", "--costs"), "1 passed, 2 deselected"),
        (("--numprocesses", "2", "--all", "--costs"), "2 passed"),
        (("--numprocesses", "0", "--nightly"), "3 passed"),
        (("--numprocesses", "0", "tests"), "3 passed"),  # asked for by name
        (("--numprocesses", "0", "-k", "night"), "1 passed, 2 deselected"),
    ],
)
def test_what_a_tier_runs(suite, arguments, summary):
    command = [sys.executable, "-m", "pytest", *arguments]
    done = subprocess.run(command, cwd=suite, text=True, capture_output=True, check=True)
    assert summary in done.stdout.splitlines()[-1]
    measured = [
        line for line in done.stdout.splitlines() if line.endswith("tests/test_it.py::test_quick")
    ]
    assert len(measured) == ("--costs" in arguments)


def test_tiers_have_every_case_once_and_every_kind_and_name_early():
    marks = {str(each.values[0]): [mark.name for mark in each.marks] for each in tiers()}
    assert [*marks] == [str(case) for case in CASES]
    quick = [case for case in CASES if not marks[str(case)]]
    assert sorted(map(kind_of, quick)) == sorted({kind_of(case) for case in CASES})
    early = {case.name for case in CASES if "nightly" not in marks[str(case)]}
    assert early == {case.name for case in CASES}
