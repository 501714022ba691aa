"""Which tests a run without --all leaves out, tried on a suite of 24 tests."""

import shutil
import subprocess
import sys

import pytest
from helpers import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "setup.cfg").exists(), reason="it is not in this copy")

TESTS = """
import pytest

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.sampled
@pytest.mark.parametrize("case", range(20))
def test_sampled(case):
    pass

@pytest.mark.sampled
@pytest.mark.parametrize("case", "ab")
def test_with_few_cases(case):
    pass

def test_quick():
    pass
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    (folder / "tests").mkdir()
    (folder / "tests/test_it.py").write_text(TESTS)
    shutil.copy(ROOT / "tests/conftest.py", folder / "tests")
    shutil.copy(ROOT / "setup.cfg", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        (("--numprocesses", "2"), "4 passed, 20 skipped"),  # two of 20, one of two, the quick one
        (("--all",), "24 passed"),
        (("tests",), "24 passed"),
        (("-k", "slow or quick"), "2 passed, 22 deselected"),
        (("--last-failed",), "24 passed"),  # none has failed, so all are run
    ],
)
def test_what_is_left_out(suite, arguments, summary):
    """Only a run of the whole suite leaves tests out, and it says so."""
    command = [sys.executable, "-m", "pytest", "--numprocesses", "0", *arguments]
    done = subprocess.run(command, cwd=suite, text=True, capture_output=True, check=True)
    assert summary in done.stdout
    line = "20 of the skipped tests were left out: pytest --all runs them"
    assert (line in done.stdout) == ("skipped" in summary)
