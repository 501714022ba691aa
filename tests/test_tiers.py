"""Which tests each tier runs, tried on a suite of three tests."""

import shutil
import subprocess
import sys

import pytest
from helpers import CASES, ROOT, by_kind, kind_of

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
    for name in ("conftest.py", "processor_time.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    shutil.copy(ROOT / "setup.cfg", folder)
    return folder


@pytest.mark.skipif(not (ROOT / "setup.cfg").exists(), reason="it is not in this copy")
@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        pytest.param("--numprocesses 0", "1 passed, 2 deselected", marks=pytest.mark.all),
        pytest.param("--numprocesses 2 --all --costs", "2 passed", marks=pytest.mark.all),
        pytest.param("--numprocesses 0 --nightly", "3 passed", marks=pytest.mark.nightly),
        # asked for by name
        pytest.param("--numprocesses 0 tests", "3 passed", marks=pytest.mark.nightly),
        pytest.param("-n0 -k night", "1 passed, 2 deselected", marks=pytest.mark.nightly),
    ],
)
def test_what_a_tier_runs(suite, arguments, summary):
    command = [sys.executable, "-m", "pytest", *arguments.split()]
    done = subprocess.run(command, cwd=suite, text=True, capture_output=True, check=True)
    assert summary in done.stdout.splitlines()[-1]
    measured = [
        line for line in done.stdout.splitlines() if line.endswith("tests/test_it.py::test_quick")
    ]
    assert len(measured) == ("--costs" in arguments)


def test_tiers_have_every_case_once_and_every_kind_and_name_early():
    marks = {str(each.values[0]): [mark.name for mark in each.marks] for each in by_kind()}
    assert [*marks] == [str(case) for case in CASES]
    quick = [case for case in CASES if not marks[str(case)]]
    assert sorted(map(kind_of, quick)) == sorted({kind_of(case) for case in CASES})
    early = {case.name for case in CASES if "nightly" not in marks[str(case)]}
    assert early == {case.name for case in CASES}
