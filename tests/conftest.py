"""Strict modes, and float64 for the files that ask for it."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="module")
def x64():
    """Float64 for a whole file: `pytestmark = pytest.mark.usefixtures("x64")`."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
