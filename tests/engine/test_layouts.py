"""On an accelerator its memory decides what the layout "auto" is; the device is a CPU here."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Compilations, one_round

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import limits
from fedjax_algos.data.stored import StoredData
from fedjax_algos.data.stored.stored_data import source_of
from fedjax_algos.engine.federated_round import FederatedRound
from fedjax_algos.engine.layouts import SHARE, largest_chunk
from fedjax_algos.engine.slots import Placement, fill_slots, mark_equal_steps
from fedjax_algos.models import models
from fedjax_algos.participation import Cohorts
from fedjax_algos.participation.cohorts import common_steps
from fedjax_algos.runs.batched.sweeps import prepare_sweep
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.settings import Settings

LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=2)


@pytest.mark.parametrize(
    ("limit", "chunk", "compiled"),
    [
        (5_100, 100, [2]),  # even in proportion to the chunk
        (5_099, 100, [2, 4, 100]),
        (1_100, 100, [2, 4, 100]),
        (1_099, 50, [2, 4, 50]),
        (600, 50, [2, 4, 50]),
        (349, 13, [2, 4, 13]),
        (121, 2, [2, 4]),
        (119, 1, [2, 4]),
        (0, 1, [2, 4]),
    ],
)
def test_the_largest_chunk_that_fits_is_found_with_few_compilations(limit, chunk, compiled):
    sizes = []

    def memory_of(chunk):
        sizes.append(chunk)
        return 100 + 10 * chunk - (18 if chunk == 2 and limit > 5_000 else 0)

    assert largest_chunk(100, limit, memory_of) == chunk
    assert sizes == compiled


def test_a_chunk_that_is_larger_than_predicted_is_halved():
    bytes_of = {2: 120, 4: 140, 100: 2_000, 50: 900, 25: 400}
    assert largest_chunk(100, 1_200, bytes_of.__getitem__) == 50
    assert largest_chunk(100, 899, bytes_of.__getitem__) == 25


@pytest.mark.parametrize(
    ("cohort_size", "limit", "chunk"), [(1, 0, 1), (3, 130, 3), (3, 120, 2), (4, 119, 1)]
)
def test_small_cohorts_are_not_predicted(cohort_size, limit, chunk):
    assert largest_chunk(cohort_size, limit, lambda size: 100 + 10 * size) == chunk


@pytest.fixture
def accelerator(monkeypatch):
    """`(bytes)`: the engine sees an accelerator with so much memory, or None for unknown."""

    def believe(memory):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        for module in ("engine.layouts", "runs.simulation"):
            monkeypatch.setattr(f"fedjax_algos.{module}.accelerator_memory", lambda: memory)

    return believe


def clients(name="fedavg"):
    """Four clients of a perceptron whose params are most of a round's memory."""
    problem = models.make("mlp:hidden=32", (64,), 10)
    rng = np.random.default_rng(0)
    examples = {"x": np.float32(rng.normal(size=(16, 64))), "y": np.arange(16) % 10}
    partition = fa.data.Partition.of(np.split(np.arange(16), 4))
    return algorithms[name](problem, LOCAL), fa.federate(examples, partition)


def simulate(name="fedavg", client_state="device"):
    algorithm, data = clients(name)
    engine = fa.make_engine(algorithm, client_state=client_state)
    state, _ = fa.simulate(engine, data, cohort_size=4, rounds=1)
    return engine, state


def bytes_of(chunk):
    """Of a round of all clients, as it is compiled."""
    algorithm, data = clients()
    state = fa.make_engine(algorithm).init(0, fa.Population(4, 4, 16))
    dispatches = one_round(Cohorts(data.counts(), LOCAL, cohort_size=4, seed=0).dispatches(1), 0)
    slots = fill_slots(dispatches, Placement(chunk).slot_order(dispatches.num_steps), 4)
    slots = mark_equal_steps(slots, dispatches, common_steps(LOCAL, data.counts()), 4)
    traced = FederatedRound(algorithm, Placement(chunk)).run_round
    program = jax.jit(traced, donate_argnums=0).lower(state, data, slots).compile()
    sizes = program.memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    return held - sizes.alias_size_in_bytes + sizes.temp_size_in_bytes


@pytest.mark.all
def test_an_engine_takes_what_fits_into_the_memory(accelerator):
    whole, half = bytes_of(4), bytes_of(2)
    assert half < whole
    on_cpu, expected = simulate()
    assert on_cpu.placement.layout == "auto"
    for needed, layout in ((whole, "4"), (whole - 1, "2"), (half - 1, "1")):
        accelerator(needed / SHARE)
        engine, state = simulate()
        assert engine.placement.layout == layout
        chex.assert_trees_all_close(state.server, expected.server, rtol=1e-5, atol=1e-6)


@pytest.mark.all
def test_the_layout_is_chosen_once_and_needs_few_bytes_for_rows_on_the_host(accelerator):
    accelerator(0)
    engine, _ = simulate("scaffold", "host")
    assert engine.placement.layout == "1"
    accelerator(10**9)  # too late
    algorithm, data = clients("scaffold")
    state = engine.init(0, fa.Population(4, 4, 16))
    dispatches = Cohorts(data.counts(), LOCAL, cohort_size=4, seed=0).dispatches(1)
    with Compilations() as compilations:
        engine.round(state, data, one_round(dispatches, 0))
    assert compilations.count == 0
    assert engine.placement.layout == "1"
    own_loop = fa.make_engine(algorithm)
    own_loop.updates(own_loop.init(0, fa.Population(4, 4, 16)), data, one_round(dispatches, 0))
    assert own_loop.placement.layout == "4"


@pytest.mark.all
def test_a_device_computes_its_part_of_what_it_holds(accelerator):
    """Two devices, rows divided or on the host, examples sharded, and examples in files."""
    accelerator(10**9)
    algorithm, data = clients("scaffold")
    partition = fa.data.Partition(data.indices, data.offsets)
    stored = StoredData(source_of(data.examples, partition, list("abcd")))
    options = {"devices": 2, "examples": "sharded"}
    for of_run, more in ((data, options), (stored, options | {"client_state": "host"})):
        engine = fa.make_engine(algorithm, **more)
        fa.simulate(engine, of_run, cohort_size=4, rounds=1)
        assert engine.placement.layout == "2"


@pytest.mark.all
@pytest.mark.parametrize(
    ("memory", "expected", "shown"),
    [
        (10**9, ("4", 1, "memory"), "chunks of 4 on 1 device (memory)"),
        (0, ("1", 1, "memory"), "chunks of 1 on 1 device (memory)"),
        (None, ("vmapped", 1, "memory unknown"), "vmapped on 1 device (memory unknown)"),
    ],
)
def test_a_comparison_records_what_decided(accelerator, memory, expected, shown):
    accelerator(memory)
    settings = Settings(clients=6, cohort=4, rounds=1, local_steps=1, model="linear")
    experiment = prepare(settings, methods_of(("fedavg", "scaffold"), settings))
    assert experiment.layout[:3] == expected
    assert str(experiment.layout) == shown
    layouts = {str(engine.placement.layout) for engine in experiment.engines.values()}
    assert layouts == {expected[0]}


@pytest.mark.all
def test_a_sweep_takes_what_fits_of_one_run(accelerator):
    def layout(given):
        settings = Settings(clients=6, cohort=4, rounds=1, model="linear", layout=given)
        return prepare_sweep(settings, "fedavg", {"client_learning_rate": [0.1]}).batched.layout

    assert layout("auto") == "auto"
    accelerator(0)
    assert layout("auto") == "1"
    assert layout("3") == "3"


def test_memory_is_known_of_accelerators_that_tell_it(monkeypatch):
    assert limits.accelerator_memory() is None
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert limits.accelerator_memory() is None  # this device has no statistics
    device = type(
        "Device", (), {"memory_stats": lambda self: {"bytes_limit": 7, "bytes_in_use": 3}}
    )
    monkeypatch.setattr(jax, "local_devices", lambda: [device()])
    assert limits.accelerator_memory() == 7


@pytest.mark.all
@pytest.mark.parametrize("batch_size", [20, 64])
def test_a_round_of_resnet20_on_a_gpu_has_no_patches(batch_size):
    """Lowered only. All clients at once: no layout that "auto" chooses has larger arrays."""
    clients, cohort_size, total = 500, 100, 50_000
    shape = jax.ShapeDtypeStruct
    examples = {"x": shape((total, 32, 32, 3), jnp.uint8), "y": shape((total,), jnp.int32)}
    of_clients = shape((total,), jnp.int32), shape((clients + 1,), jnp.int32)
    data = fa.data.FederatedData(examples, *of_clients)
    local = fa.Local(learning_rate=0.1, steps=8, batch_size=batch_size)
    algorithm = fa.algorithms.fedavg(models.make("resnet20", (32, 32, 3), 100), local)
    state = fa.make_engine(algorithm).shapes(fa.Population(clients, cohort_size, total))
    cohorts = Cohorts(np.full(clients, 100), local, cohort_size=cohort_size, seed=0)
    round_fn = jax.jit(FederatedRound(algorithm, Placement("vmapped")).run_round)
    traced = round_fn.trace(state, data, one_round(cohorts.dispatches(1), 0))
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    arrays = re.findall(r"tensor<((?:\d+x)+)[a-z]*(\d+)>", program)
    bytes_of_arrays = {
        dims: np.prod([*map(int, dims.split("x")[:-1])]) * max(int(bits) // 8, 1)
        for dims, bits in arrays
    }
    assert f"{batch_size}x32x32x1600x" in bytes_of_arrays  # 16 channels of all clients
    assert max(bytes_of_arrays.values()) <= 1e9
    assert "stablehlo.convolution" in program
    assert "optimization_barrier" not in program
