"""Strict modes, quick compilation, eight devices, and float64 for the files that ask for it."""

import os
import tempfile
from importlib import metadata

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # the user's own layouts are nobody's business
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if metadata.version("jaxlib").startswith("0.10."):  # other versions may not know these flags
    quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}"  # compiles twice as fast

import jax
import pytest

from fedjax_algos import comparison
from fedjax_algos.layouts import Choice

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)  # nearly all time here is compilation
jax.config.update("jax_num_cpu_devices", 8)  # what names no devices runs on the first


def unmeasured(*args, **keywords):
    """No test may depend on what is fastest."""
    return Choice("sequential", 1, (), "rule")


comparison.choose_layout = unmeasured


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


@pytest.fixture(scope="module", params=["vmapped", 2, "sequential"], ids=str)
def layout(request):
    """Runs a whole file's histories once in each layout."""
    from histories import Current

    Current.layout = request.param
    yield request.param
    Current.layout = "vmapped"
