"""Every two settings of a run stand together in some run of one of a few algorithms.

experiments/every_triple.py has every two settings for each algorithm, and every three in some run.
"""

import importlib.util

import pytest
from helpers import ROOT

from fedjax_algos.participation import samplers

pytestmark = pytest.mark.usefixtures("x64")

PATH = ROOT / "experiments" / "every_triple.py"
NAMES = {  # by cohorts, so that a few plain runs serve all comparisons
    "full": "scaffold",
    "empty slots": "localghbm",
    "random size": "fedgbo",
    "available": "fedcompass",
    "twice": "fedlga",
}

if not PATH.exists():
    pytest.skip("experiments/ is not in this copy", allow_module_level=True)
spec = importlib.util.spec_from_file_location("every_triple", PATH)
every_triple = importlib.util.module_from_spec(spec)
spec.loader.exec_module(every_triple)
ROWS = every_triple.covering(every_triple.all_settings(), set())


def test_the_table_has_every_pair_and_every_sampler():
    def pairs(rows):
        return set().union(*(every_triple.groups(row, 2) for row in rows))

    assert pairs(ROWS) == pairs(every_triple.all_settings())
    specs = [spec for some in every_triple.SAMPLERS.values() for spec in some]
    assert {s.partition(":")[0] for s in specs if isinstance(s, str)} == set(samplers)


@pytest.mark.all
@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_the_results_are_those_of_the_plain_run(row, tmp_path):
    assert every_triple.check(NAMES[row["cohorts"]], [row], tmp_path) == []
