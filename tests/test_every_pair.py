"""Every two settings of a run stand together in some run of one of a few algorithms.

experiments/every_triple.py has every two settings for each algorithm, and every three in some run.
"""

import importlib.util

import pytest
from helpers import ROOT

from fedjax_algos.participation import samplers

pytestmark = pytest.mark.usefixtures("x64")

PATH = ROOT / "experiments" / "every_triple.py"
NAMES = ["scaffold", "fedgbo", "localghbm", "fedcompass", "fedlga"]

if not PATH.exists():
    pytest.skip("experiments/ is not in this copy", allow_module_level=True)
spec = importlib.util.spec_from_file_location("every_triple", PATH)
every_triple = importlib.util.module_from_spec(spec)
spec.loader.exec_module(every_triple)
ROWS = every_triple.covering(every_triple.all_settings(), set())


def test_every_sampler_draws_cohorts():
    specs = [spec for some in every_triple.SAMPLERS.values() for spec in some]
    names = {spec.partition(":")[0] for spec in specs if isinstance(spec, str)}
    assert names == set(samplers)


def test_the_table_has_every_pair():
    def pairs(rows):
        return set().union(*(every_triple.groups(row, 2) for row in rows))

    assert pairs(ROWS) == pairs(every_triple.all_settings())


@pytest.mark.all
@pytest.mark.parametrize("number", range(len(ROWS)))
def test_the_results_are_those_of_the_plain_run(number, tmp_path):
    assert every_triple.check(NAMES[number % len(NAMES)], [ROWS[number]], tmp_path) == []
