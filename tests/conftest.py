"""Strict modes, quick compilation, and float64 for the files that ask for it."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)  # nearly all time here is compilation


@pytest.fixture(scope="module")
def optimised():
    """The compiler's optimisations for a whole file, as in real runs."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def x64():
    """Float64 for a whole file: `pytestmark = pytest.mark.usefixtures("x64")`."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
