import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedjax_algos.core.randomness import next_words, permutation_words, permute

LIMIT = 300


@jax.jit
def whole(seed, size):
    """The first LIMIT entries of a permutation; those beyond `size` repeat the last one."""
    entries = jnp.minimum(jnp.arange(LIMIT), size - 1)
    return permute(permutation_words(jax.random.key(seed)), entries, size)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, LIMIT), st.integers(0, 2**31 - 1))
def test_is_a_permutation(size, seed):
    assert sorted(np.asarray(whole(seed, size))[:size]) == list(range(size))


@settings(deadline=None, max_examples=20)
@given(st.integers(LIMIT, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_large_permutations_stay_in_range_without_repeats(size, seed):
    entries = np.asarray(whole(seed, size))
    assert entries.min() >= 0
    assert entries.max() < size
    assert len(set(entries.tolist())) == LIMIT


@functools.cache
def many_shuffles(size, series):
    """20,000 shuffles of a size, from as many words of a series or of as many keys."""
    numbers = jnp.arange(20_000)
    if series:
        start = permutation_words(jax.random.key(0))
        words = jax.vmap(lambda n: next_words(start, n))(numbers)
    else:
        words = jax.vmap(lambda n: permutation_words(jax.random.key(n)))(numbers)
    return np.asarray(jax.vmap(lambda w: permute(w, jnp.arange(size), size))(words))


@pytest.mark.all
@pytest.mark.parametrize("series", [False, True], ids=["keys", "series"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_small_shuffles_are_equally_likely(size, series):
    codes = many_shuffles(size, series) @ (size ** np.arange(size))
    orders = [np.dot(p, size ** np.arange(size)) for p in itertools.permutations(range(size))]
    counts = [(codes == code).sum() for code in orders]
    assert sum(counts) == len(codes)
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("series", [pytest.param(False, marks=pytest.mark.all), True])
def test_places_and_neighbours_are_uniform(series):
    """Size 23: each entry at each place, and each ordered pair in the first two places."""
    size = 23
    shuffles = many_shuffles(size, series)
    for place in (0, 1, 11, 22):
        counts = np.bincount(shuffles[:, place], minlength=size)
        assert stats.chisquare(counts).pvalue > 1e-4
    pairs = np.bincount(shuffles[:, 0] * size + shuffles[:, 1], minlength=size**2)
    different = ~np.eye(size, dtype=bool).ravel()
    assert stats.chisquare(pairs[different]).pvalue > 1e-4
    assert len(np.unique(shuffles, axis=0)) == len(shuffles)
