"""Codecs as wrappers of an algorithm: exact vectors arrive, bytes are counted, options checked."""

import jax
import numpy as np
import pytest
from helpers import dispatches_of, one_round, stored
from wrapper_helpers import rounds_of, sends

import fedjax_algos as fa
from fedjax_algos.engine.exchange import count_transfer

pytestmark = pytest.mark.usefixtures("x64")
D = 40
SIGNS = np.random.default_rng(0).choice([-0.5, 0.5], D)
ONE_HOT = np.eye(D)[7] * -3
EXACT = {  # a vector that the codec keeps, and the words of its message
    "qsgd:levels=3,bucket=8,norm=max": (SIGNS, 5 + 4),
    "klevel:levels=9,rotate=true": (ONE_HOT, 2 + 8),
    "terngrad:clip=0,scope=part": (SIGNS, 1 + 3),
    "natural": (SIGNS, 12),
    "scaled_sign": (SIGNS, 1 + 2),
    "sparse_ternary:fraction=0.01": (ONE_HOT, 1 + 1 + 1),
    "drive:blocks=true": (ONE_HOT, 1 + 1 + 1 + 1),
    "eden:bits=2,scale=least_squares": (ONE_HOT, 1 + 4),
}


@pytest.mark.all
@pytest.mark.parametrize("spec", EXACT)
def test_exact_vectors_arrive_and_their_words_are_counted(spec):
    v, words = EXACT[spec]
    algorithm = fa.wrappers.wrap(sends(np.stack([v, 2 * v])[:, None]), spec)
    (state,) = rounds_of(algorithm, [(0, 1)], 2)
    np.testing.assert_allclose(state.server.params["x"], -1.5 * v, atol=5e-6)
    data = stored([{"b": np.zeros(1)}] * 2)
    dispatches = one_round(dispatches_of(data, algorithm.local, [(0, 1)]), 0)
    state = jax.eval_shape(lambda: fa.pure_round(algorithm).init(0, fa.Population(2, 2, 2)))
    assert count_transfer(algorithm, state, data, dispatches).upload == 4 * words


def test_options_that_do_not_fit_are_refused_by_name():
    algorithm = sends(np.zeros((1, 1, D)))
    for spec, reason in {
        "qsgd:levels=0": "qsgd: levels=0 is out of range",
        "qsgd:levels=65536": "because a level takes at most 16 bits",
        "qsgd:norm=l1": "qsgd: norm='l1' is unknown; choose l2 or max",
        "klevel:levels=1": "klevel: levels=1 is out of range",
        "terngrad:clip=-1": "terngrad: clip=-1 is out of range",
        "terngrad:feedback=ef": "terngrad: feedback=ef does not fit: a vector with.*; give clip=0",
        "eden:bits=0.4": "eden: bits=0.4 is out of range",
        "eden:bits=9": "eden: bits=9 is out of range",
        "drive:scale=matched": "drive: scale='matched' is unknown",
        "sparse_ternary:fraction=0": "sparse_ternary: fraction=0 is out of range",
        "scaled_sign:feedback=diana": "the codec is biased",
        "eden:scale=least_squares,feedback=diana": "the codec is biased",
    }.items():
        with pytest.raises(ValueError, match=reason):
            fa.wrappers.wrap(algorithm, spec)


def test_unbiased_codecs_with_error_feedback_reach_the_vector():
    """Each is divided by 1 + omega, so that a constant vector arrives in the mean of the rounds."""
    v = np.random.default_rng(1).normal(size=64)
    for spec in ("qsgd:levels=7,feedback=ef", "eden:bits=0.5,feedback=ef"):
        algorithm = fa.wrappers.wrap(sends(np.tile(v, (1, 60, 1))), spec)
        *_, last = rounds_of(algorithm, [(0,)] * 60, 1)
        arrived = -last.server.params["x"] / 60
        assert np.linalg.norm(arrived - v) < 0.15 * np.linalg.norm(v)


@pytest.mark.parametrize("spec", ["natural", "natural:feedback=ef21", "eden:bits=2,feedback=ef"])
def test_what_is_not_finite_is_left_out(spec):
    """Also without a scale, where an infinite exponent alone says so."""
    vectors = np.ones((2, 1, 4), np.float32)
    vectors[1, :, 2] = np.nan
    (state,) = rounds_of(fa.wrappers.wrap(sends(vectors), spec), [(0, 1)], 2)
    assert (state.excluded.number, state.excluded.client) == (1, 1)
    assert np.isfinite(state.server.params["x"]).all()


def test_layouts_give_the_same_results():
    vectors = np.random.default_rng(0).normal(size=(3, 2, 50))
    algorithm = fa.wrappers.wrap(sends(vectors), "eden:bits=2.5")
    found = [
        rounds_of(algorithm, [(0, 1, 2), (2, 1, 0)], 3, layout=layout)[-1].server.params["x"]
        for layout in ("vmapped", "sequential")
    ]
    np.testing.assert_allclose(*found, atol=1e-5)
    assert np.linalg.norm(found[0]) > 1
