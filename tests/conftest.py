"""Which tests run, strict modes, quick compilation, devices; float64, reads and bounds."""

import gc
import os
import signal
import tracemalloc
import zlib
from collections import Counter
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

gc.set_threshold(200_000, 20, 20)  # tracing makes many objects, and few cycles of them
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)  # tests that name no devices run on the first one

PAPERS = Path(__file__).parents[1] / "experiments" / "papers"
collect_ignore = [] if PAPERS.exists() else ["papers"]  # a copy without experiments
CASES = 10  # of so many cases of a `sampled` test, one is run without --all
LEFT_OUT = "pytest --all runs them"


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run slow tests and all cases too")


def pytest_configure(config):
    """Tests that are asked for by files, folders, -k, -m or --last-failed are all run."""
    options = config.option
    whole_suite = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    options.all |= not whole_suite or bool(options.keyword or options.markexpr or options.lf)
    if hasattr(config, "workerinput"):
        options.all = config.workerinput["all"]  # a worker has other arguments


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["all"] = node.config.option.all


def pytest_collection_modifyitems(config, items):
    """Skips, without --all, `slow` tests and most cases of `sampled` tests.

    Which cases are run depends on the test's name, so that an algorithm that one test leaves out is
    met in others.
    """
    skip = pytest.mark.skip(reason=LEFT_OUT)
    cases = Counter(item.nodeid.partition("[")[0] for item in items)
    position = Counter()
    for item in items if not config.option.all else ():
        test = item.nodeid.partition("[")[0]
        first = zlib.crc32(test.encode()) % min(cases[test], CASES)
        left_out = (position[test] - first) % CASES != 0
        position[test] += 1
        if item.get_closest_marker("slow") or (item.get_closest_marker("sampled") and left_out):
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter, config):
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    if left_out := sum(LEFT_OUT in reason for reason in skipped):
        terminalreporter.write_line(f"{left_out} of the skipped tests were left out: {LEFT_OUT}")


@pytest.fixture(scope="session", autouse=True)
def shared_programs(tmp_path_factory):
    """Processes that tests start share what they compile; this one has read its settings before."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path_factory.mktemp("programs"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


@pytest.fixture(autouse=True)
def forget_own_names():
    """What a test registers from files of its own is removed after it."""
    yield
    from fedjax_algos.cli.registries import REGISTRIES
    from fedjax_algos.core.registry import own_places

    own_places.clear()
    for registry in REGISTRIES.values():
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
    monkeypatch.setattr("fedjax_algos.engine.checks.check_dispatches", lambda *arguments: None)


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
