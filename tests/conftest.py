"""Tiers of tests, strict modes, quick compilation, devices; float64, reads and bounds."""

import gc
import os
import signal
import tracemalloc
from importlib import metadata
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["FEDJAX_ALGOS_NATIVE"] = "0"  # digits do not depend on it; test_native.py has its tests
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # a folder of programs of these tests' parent
# Nearly all time here is compilation; processes that tests start inherit this.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
if metadata.version("jaxlib").startswith("0.10."):  # other versions may not know these flags
    quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}"  # compiles twice as fast

import jax
import numpy as np
import pytest
from processor_time import Costs

gc.set_threshold(200_000, 20, 20)  # tracing makes many objects, and few cycles of them
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)  # tests that name no devices run on the first one

PAPERS = Path(__file__).parents[1] / "experiments" / "papers"
collect_ignore = [] if PAPERS.exists() else ["papers"]  # a copy without experiments


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the tests marked `all` too")
    parser.addoption("--nightly", action="store_true", help="run all tests")
    parser.addoption("--costs", action="store_true", help="show where processor time goes")


def pytest_configure(config):
    """Leaves out tiers by their marks, unless some tests are asked for by name, file or mark."""
    options, whole = config.option, pytest.Config.ArgsSource.TESTPATHS
    asked = config.args_source != whole or options.keyword or options.markexpr or options.lf
    if not (asked or options.nightly):
        options.markexpr = "not nightly" if options.all else "not nightly and not all"
    if options.costs:
        config.pluginmanager.register(Costs())


@pytest.fixture(scope="session", autouse=True)
def shared_programs(tmp_path_factory):
    """Processes that tests start share what they compile; this one has read its settings before."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path_factory.mktemp("programs"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


@pytest.fixture(autouse=True)
def forget_own_names():
    """What a test registers from files of its own is removed after it."""
    yield
    from fedjax_algos.cli.commands import REGISTRIES, registry_of
    from fedjax_algos.core.registry import own_places

    own_places.clear()
    for registry in map(registry_of, REGISTRIES):
        for name in [name for name in registry if ":" in name]:
            del registry[name]


@pytest.fixture
def optimised():
    """The compiler's optimisations, as in real runs, for a test or by `pytestmark` for a file."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def x64():
    """Float64 for a whole file: `pytestmark = pytest.mark.usefixtures("x64")`."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture
def any_rate(monkeypatch):
    """Lets dispatches through that spoil a client by its learning rate."""
    monkeypatch.setattr("fedjax_algos.core.checks.check_dispatches", lambda *arguments: None)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder of the test, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def unreadable(monkeypatch):
    """Device arrays that cannot be read: on a CPU the transfer guard lets reads pass."""
    from helpers import ReadError

    def refuse(*args, **keywords):
        raise ReadError

    kind = type(jax.numpy.zeros(()))
    for name in ("__array__", "__float__", "__int__", "__bool__", "__index__", "item", "tolist"):
        monkeypatch.setattr(kind, name, refuse)
    for name in ("asarray", "array", "ascontiguousarray"):  # they also take an array's buffer
        original = getattr(np, name)

        def guarded(value, *args, original=original, **keywords):
            return refuse() if isinstance(value, jax.Array) else original(value, *args, **keywords)

        monkeypatch.setattr(np, name, guarded)
    monkeypatch.setattr(jax, "device_get", refuse)
    monkeypatch.setattr(jax, "block_until_ready", refuse)


@pytest.fixture
def bounded():
    """Ends a test that waits for 60 seconds; afterwards checks that it took less than 100 MB."""

    def end(*_):
        pytest.fail("it waits")  # which is no error that a reader catches

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert peak < 100e6
