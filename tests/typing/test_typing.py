"""mypy and pyright accept typical user code, and report every wrong call."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedjax_algos

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".mypy_cache" / "typing"  # what is checked is the whole package
CHECKERS = {
    "mypy": ["mypy", "--config-file=", "--ignore-missing-imports", f"--cache-dir={CACHE}"],
    "pyright": ["pyright", "--pythonpath", sys.executable],
}
pytestmark = pytest.mark.all


@pytest.fixture(scope="module", params=CHECKERS)
def reported(request):
    """For each file, the lines in which a checker reports an error."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed; install the extra dev")
    files = ["user_code.py", "wrong_calls.py"]
    command = [sys.executable, "-m", *CHECKERS[request.param], *files]
    environment = dict(os.environ)
    if Path(fedjax_algos.__file__).parents[1] == ROOT:  # mypy does not find an editable package
        environment["MYPYPATH"] = str(ROOT)
    done = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )
    found = re.findall(r"(\w+\.py):(\d+)[:\d]* ?-? ?error", done.stdout)
    return {name: {int(line) for file, line in found if file == name} for name in files}


def test_right_calls_pass(reported):
    assert reported["user_code.py"] == set()


def test_wrong_calls_are_reported(reported):
    lines = (HERE / "wrong_calls.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(wrong) == 22
    assert reported["wrong_calls.py"] == wrong
