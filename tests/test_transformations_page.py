"""The Python of docs/transformations.md runs as it stands, from top to bottom."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_algos as fa

PAGE = (Path(__file__).parent.parent / "docs" / "transformations.md").read_text()


@pytest.mark.slow
def test_its_programs_run(capsys):
    names = {}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(program, names)
    assert capsys.readouterr().out.count("\n") >= 3
    engine = fa.make_engine(names["round_fn"].algorithm)
    settings = {"cohort_size": 5, "rounds": 10, "seed": 1, "test": names["examples"]}
    _, history = fa.simulate(engine, names["data"], **settings)
    np.testing.assert_allclose(names["losses"][1], history[-1]["test_loss"], rtol=1e-5)
    assert names["losses"].shape == (64,)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(names["gradient"]))
    assert (np.asarray(names["gradient"][2]) != 0).any()
