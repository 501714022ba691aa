"""On an accelerator its memory decides what the layout "auto" is; the device is a CPU here."""

import dataclasses
import math
import re
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import ALGORITHM, LOCAL, POPULATION, SEED, examples, in_files
from helpers import CASES, dispatches_of, one_round, small_network

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.base import limits
from fedjax_algos.core.types import blank_dispatches
from fedjax_algos.engine.federated_round import FederatedRound
from fedjax_algos.engine.layouts import SHARE, largest_chunk
from fedjax_algos.engine.slots import Placement, mark_equal_steps
from fedjax_algos.models import models
from fedjax_algos.participation import Cohorts
from fedjax_algos.runs.studies.experiment import LayoutChoice, prepare
from fedjax_algos.runs.studies.method import methods_of
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.runs.studies.sweeps import prepare_sweep


def affine(chunk):
    return 100 + 10 * chunk


SMALL_PAIR = {2: 102, 4: 140, 100: 1_100}
LARGER = {2: 120, 4: 140, 100: 2_000, 50: 900}  # than predicted


@pytest.mark.parametrize(
    ("memory_of", "size", "limit", "chunk", "compiled"),
    [
        (SMALL_PAIR.get, 100, 5_100, 100, [2]),  # even in proportion to the chunk
        (SMALL_PAIR.get, 100, 5_099, 100, [2, 4, 100]),
        (affine, 100, 1_100, 100, [2, 4, 100]),
        (affine, 100, 1_099, 50, [2, 4, 50]),
        (affine, 100, 349, 13, [2, 4, 13]),
        (affine, 100, 121, 2, [2, 4]),
        (affine, 100, 0, 1, [2, 4]),
        (LARGER.get, 100, 1_200, 50, [2, 4, 100, 50]),
        (affine, 1, 0, 1, []),  # small cohorts are not predicted
        (affine, 3, 130, 3, [3]),
        (affine, 3, 120, 2, [3, 2]),
        (affine, 4, 119, 1, [4, 2]),
    ],
)
def test_the_largest_chunk_that_fits_is_found_with_few_compilations(
    memory_of, size, limit, chunk, compiled
):
    sizes = []
    assert largest_chunk(size, limit, lambda each: sizes.append(each) or memory_of(each)) == chunk
    assert sizes == compiled


@pytest.fixture
def accelerator(monkeypatch):
    """`(bytes)`: the engine sees an accelerator with so much memory, or None for unknown."""

    def believe(memory):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        for module in ("engine.engine", "runs.loops.simulation"):
            monkeypatch.setattr(f"fedjax_algos.{module}.accelerator_memory", lambda: memory)

    return believe


@pytest.mark.parametrize(
    ("memory", "devices", "layout"),
    [(None, 1, "auto"), (140, 1, "4"), (139, 1, "2"), (120, 4, "2")],
)
def test_auto_is_what_fits_into_a_share_of_the_memory(
    accelerator, monkeypatch, memory, devices, layout
):
    accelerator(memory and memory / SHARE)
    engine = fa.make_engine(ALGORITHM, devices=devices)
    monkeypatch.setattr(engine, "_memory", lambda *given: 100 + 10 * given[-1])
    assert engine.choose_layout((), (), blank_dispatches(7 if devices > 1 else 4)) == layout


def first_dispatches():
    return one_round(dispatches_of(examples(), LOCAL, [(0, 1, 2, 5)]), 0)


def choose(engine, data=None):
    return engine.choose_layout(engine.shapes(POPULATION), data or examples(), first_dispatches())


@pytest.mark.all
def test_the_layout_is_chosen_once(accelerator):
    """By a round, or by the updates of one's own loop; rows may be on the host."""
    accelerator(0)
    engine = fa.make_engine(ALGORITHM, client_state="host")
    assert choose(engine) == "1"
    accelerator(10**9)  # too late
    engine.round(engine.init(SEED, POPULATION), examples(), first_dispatches())
    assert (engine.layout, engine.placement.layout) == ("1", "auto")
    own_loop = fa.make_engine(ALGORITHM)
    own_loop.updates(own_loop.init(SEED, POPULATION), examples(), first_dispatches())
    assert own_loop.layout == "4"


@pytest.mark.all
def test_a_device_computes_its_part_of_what_it_holds(accelerator):
    """Two devices, rows divided or on the host, examples sharded, and examples in files."""
    accelerator(10**9)
    options = {"devices": 2, "examples": "sharded"}
    assert choose(fa.make_engine(ALGORITHM, **options)) == "2"
    assert choose(fa.make_engine(ALGORITHM, client_state="host", **options), in_files()) == "2"


@pytest.mark.all
def test_the_memory_of_a_round_is_that_of_its_program(accelerator):
    """Of a perceptron, whose params are most of it."""
    rng = np.random.default_rng(0)
    values = {"x": np.float32(rng.normal(size=(16, 64))), "y": np.arange(16) % 10}
    data = fa.federate(values, fa.data.Partition.of(np.split(np.arange(16), 4)))
    local = fa.Local(batch_size=2, learning_rate=0.1, steps=2)
    algorithm = algorithms["fedavg"](models.make("mlp:hidden=32", (64,), 10), local)
    dispatches = one_round(Cohorts(data.counts(), local, cohort_size=4, seed=0).dispatches(1), 0)
    state = fa.make_engine(algorithm).shapes(fa.Population(4, 4, 16))
    traced = FederatedRound(algorithm, Placement(4)).run_round
    slots = mark_equal_steps(dispatches, dispatches, 2, 4)
    program = jax.jit(traced, donate_argnums=0).lower(state, data, slots).compile()
    sizes = program.memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    needed = held - sizes.alias_size_in_bytes + sizes.temp_size_in_bytes
    for memory, layout in ((needed, "4"), (needed - 1, "2")):
        accelerator(memory / SHARE)
        assert fa.make_engine(algorithm).choose_layout(state, data, dispatches) == layout


def test_what_decided_is_told():
    assert str(LayoutChoice("4", 1, "memory")) == "chunks of 4 on 1 device (memory)"
    assert str(LayoutChoice("vmapped", 2, "given")) == "vmapped on 2 devices (given)"
    shared = LayoutChoice("auto", 4, "rule", 2)
    assert str(shared) == "auto on 4 devices, 2 for each client (rule)"


SMALL = Settings(clients=6, cohort=4, rounds=1, local_steps=1, model="linear")


@pytest.mark.all
@pytest.mark.parametrize(
    ("memory", "expected"), [(10**9, ("4", 1, "memory")), (None, ("vmapped", 1, "memory unknown"))]
)
def test_a_comparison_records_what_decided(accelerator, memory, expected):
    accelerator(memory)
    experiment = prepare(SMALL, methods_of(("fedavg", "scaffold"), SMALL))
    assert experiment.layout[:3] == expected
    layouts = {str(engine.placement.layout) for engine in experiment.engines.values()}
    assert layouts == {expected[0]}


@pytest.mark.all
def test_a_sweep_takes_what_fits_of_one_run(accelerator):
    def layout(given):
        settings = dataclasses.replace(SMALL, layout=given)
        return prepare_sweep(settings, "fedavg", {"client_learning_rate": [0.1]}).batched.layout

    assert layout("auto") == "auto"
    accelerator(0)
    assert layout("auto") == "1"
    assert layout("3") == "3"


def test_memory_is_known_of_accelerators_that_tell_it(monkeypatch):
    assert limits.accelerator_memory() is None
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert limits.accelerator_memory() is None  # this device has no statistics
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 7, "bytes_in_use": 3})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert limits.accelerator_memory() == 7


@pytest.mark.all
def test_a_round_of_resnet20_on_a_gpu_has_no_patches():
    """Lowered only. All clients at once: no layout that "auto" chooses has larger arrays."""
    clients, cohort_size, total = 500, 100, 50_000
    shape = jax.ShapeDtypeStruct
    examples = {"x": shape((total, 32, 32, 3), jnp.uint8), "y": shape((total,), jnp.int32)}
    of_clients = shape((total,), jnp.int32), shape((clients + 1,), jnp.int32)
    data = fa.data.FederatedData(examples, *of_clients)
    local = fa.Local(learning_rate=0.1, steps=8, batch_size=20)
    algorithm = fa.algorithms.fedavg(models.make("resnet20", (32, 32, 3), 100), local)
    state = fa.make_engine(algorithm).shapes(fa.Population(clients, cohort_size, total))
    cohorts = Cohorts(np.full(clients, 100), local, cohort_size=cohort_size, seed=0)
    round_fn = jax.jit(FederatedRound(algorithm, Placement("vmapped")).run_round)
    traced = round_fn.trace(state, data, one_round(cohorts.dispatches(1), 0))
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    arrays = dict(re.findall(r"tensor<((?:\d+x)+)[a-z]*(\d+)>", program))
    assert "20x32x32x1600x" in arrays  # 16 channels of all clients
    for dims, bits in arrays.items():
        assert math.prod(map(int, dims.split("x")[:-1])) * max(int(bits) // 8, 1) <= 1e9
    assert "stablehlo.convolution" in program
    assert "optimization_barrier" not in program


SETS = [(0, 1, 2), (3, 2, 1), (0, 3, 2), (1, 0, 3)]
STEPS = (3, 1, 7, 4)  # batches of 3 from 5, 1, 8 and 3 examples
OF_THREE = fa.Local(batch_size=3, learning_rate=0.1, steps=1)


@pytest.mark.all
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("name", ["scaffold", "mime", "fedlga"])
def test_layouts_agree_in_optimised_float32(name):
    """After a round, in a program of many, as `simulate` runs those between two evaluations.

    For sums with client state, a prelude, and a stack; four rounds have the same bits whether
    updates are checked to be finite or not.
    """
    toy, case = small_network(), [case for case in CASES if case.name == name][-1]
    algorithm = case.build(toy.problem, OF_THREE)
    dispatches = dispatches_of(toy.data, OF_THREE, SETS, STEPS)
    layout, other = ("sequential", "vmapped") if name == "scaffold" else ("vmapped", "sequential")
    engine = fa.make_engine(algorithm, layout)

    def rounds(engine, number):
        start = engine.init(0, fa.Population(4, 3, 17))
        state, metrics = engine.rounds(start, engine.put_data(toy.data), dispatches, number)
        return jax.tree.map(np.array, (state._replace(excluded=()), metrics))

    engines = engine, fa.make_engine(algorithm, other, devices=2)
    ends = (rounds(each, 1)[0].server.params for each in engines)
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        assert a.dtype == np.float32
        # relative to the scale of the leaf: an entry near 0 has no relative precision
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())
    keeping = fa.make_engine(algorithm, layout, non_finite="keep")
    chex.assert_trees_all_equal(rounds(keeping, 4), rounds(engine, 4))
