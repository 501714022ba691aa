"""Which defaults are right on this device? Each decision that was taken on a CPU, measured.

COMMAND   python benchmarks/accelerator.py [--minutes 12] [--only NAME ...] [--out accelerator.json]
EXPECTED  a line for each decision: what is default here, what is fastest, and what to change
TIME      at most 15 minutes on a GPU or TPU, most of which compile; after 12, --minutes, no other
          form is begun

Decisions: the forms of convolutions and pools, in a local step of a layer and in rounds; how many
clients are computed at once; waves of the virtual clock, and merged plans of several seeds; loops
over local steps, of a length that is known or not. Forms take turns; each ratio is the median over
turns of a form's time to the default's in the same turn, and below .95 it is a reason to change.

The recipe is that of pfl-research's published benchmark on CIFAR-10 (`benchmarks/
image_classification/configs/baseline.yaml` there): 1,000 clients of 50 images, cohorts of 50, one
epoch of batches of 10 with rate .1, uniform means, evaluated every ten of 1,500 rounds; conv3 32,
conv3 64, pool, dropout, dense 128, dropout (1,626,442 parameters). Its images are random here, as
all are, which does not change the times.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from deferred import METHODS, Waves

import fedjax_algos as fa
from fedjax_algos.asynchrony import planners, system_models
from fedjax_algos.models import classifier, convolve, convolve_3d, convolve_depthwise, models
from fedjax_algos.models.layers import shifted
from fedjax_algos.participation import Cohorts

ROOT = Path(__file__).parent.parent
CHANGE = 0.95  # a form that takes less than this share of the default's time should replace it
FAR_BEHIND = 2
LAYERS = "fedjax_algos/models/layers"
WHERE = {  # the lines that decide: a file and what they hold
    "convolution": (f"{LAYERS}/convolution.py", "by_platform(_by_patches, native.by_lax"),
    "depthwise": (f"{LAYERS}/shifted.py", "by_platform(_by_padded_shifts, native.by_lax"),
    "volumes": (f"{LAYERS}/volumes.py", "by_platform(_by_planes, native.by_lax"),
    "pool": (f"{LAYERS}/shifted.py", "by_platform(_pool_padded, nn.max_pool"),
    "layout": ("fedjax_algos/engine/layouts.py", "def largest_chunk("),
    "waves": ("fedjax_algos/engine/asynchronous/waves.py", "_MAX_SLOTS_PER_DEVICE ="),
    "clock": ("fedjax_algos/engine/slots.py", "def default_layout("),
    "merged": ("fedjax_algos/runs/loops/clock.py", "_MERGED_BYTES ="),
    "loops": ("fedjax_algos/core/local_steps.py", "def repeat("),
}
Run = Callable[[], Any]  # runs a form once


class Decision(NamedTuple):
    """What is decided, the forms by name, of which the first is the default, and where it stands.

    Each form is made by a function, which may take long, and returns what runs it once.
    """

    name: str
    forms: dict[str, Callable[[], Run]]
    where: str


class Sizes(NamedTuple):
    """Of everything that is measured."""

    cohort: int = 100
    chunk: int = 10
    steps: int = 8
    side: int = 32
    batch: int = 20
    channels: tuple[int, ...] = (16, 64)
    networks: tuple[str, ...] = ("mlp:hidden=200,layers=2", "cnn_fedgbo", "resnet20")
    recipe: tuple[int, int] = (1_000, 50)  # clients, cohort
    tested: int = 10_000
    arrivals: int = 120


SMALL = Sizes(4, 2, 1, 6, 2, (2,), ("mlp:hidden=2", "cnn_fedgbo"), (3, 2), 4, 6)


def line_of(where: str) -> str:
    """FILE:LINE of what decides."""
    name, text = WHERE[where]
    lines = (ROOT / name).read_text().splitlines()
    return f"{name}:{1 + next(i for i, line in enumerate(lines) if text in line)}"


def _on_cpu():
    return jax.default_backend() == "cpu"


class SmallNetwork(nn.Module):
    """The network of the recipe."""

    @nn.compact
    def __call__(self, x, training=False):
        for features in (32, 64):
            x = nn.relu(fa.models.Conv(features, (3, 3), padding="VALID")(x))
        x = fa.models.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        x = nn.Dropout(0.25, deterministic=not training)(x)
        x = nn.Dropout(0.5, deterministic=not training)(nn.relu(nn.Dense(128)(x)))
        return nn.Dense(10)(x)


def federated(shape, clients, each):
    """Random images of equal clients."""
    rng, total = np.random.default_rng(0), clients * each
    images = rng.integers(0, 256, (total, *shape), dtype=np.uint8).astype(np.float32) / 255
    examples = {"x": images, "y": rng.integers(0, 10, total, dtype=np.int32)}
    return fa.federate(examples, fa.Partition.of(np.split(np.arange(total), clients)))


def rounds(problem, data, local, cohort_size, layout="auto", number=2) -> Run:
    """Rounds of FedAvg, one call after another."""
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local, weighting="uniform"), layout)
    counts = data.counts()
    state = engine.init(0, fa.Population(len(counts), cohort_size, int(counts.sum())))
    cohorts = Cohorts(counts, local, cohort_size=cohort_size, seed=0)

    def run():
        nonlocal state
        state, _ = engine.rounds(state, data, cohorts.dispatches(number))
        return state.server

    return run


def steps_of_layer(function, shape, kernel, sizes) -> Run:
    """A chunk of clients take local steps on the sum of a layer's outputs, each with its kernel."""
    keys = jax.random.split(jax.random.key(0), 2)
    images = jax.random.normal(keys[0], (sizes.chunk, sizes.batch, *shape))
    kernels = jax.random.normal(keys[1], (sizes.chunk, *kernel)) / np.prod(kernel[:-1])

    @jax.jit
    @jax.vmap
    def client(images, kernel):
        def step(_, carry):
            gradients = jax.grad(lambda x, k: jnp.sin(function(x, k)).sum(), (0, 1))(*carry)
            return jax.tree.map(lambda a, g: a - 0.01 * g, carry, gradients)

        return jax.lax.fori_loop(0, sizes.steps, step, (images, kernel))

    return lambda: client(images, kernels)


def layer_decisions(sizes: Sizes) -> list[Decision]:
    """The forms of single layers."""
    decisions, side = [], sizes.side

    def decide(name, forms, shape, kernel, where):
        made = {
            form: partial(steps_of_layer, function, shape, kernel, sizes)
            for form, function in forms.items()
        }
        decisions.append(Decision(name, made, where))

    def named(function, *others):
        others = ("lax", *others) if _on_cpu() else others
        forms = {"default": function}
        return forms | {form: partial(function, implementation=form) for form in others}

    for number, channels in enumerate(sizes.channels):
        image = side >> number, side >> number, channels
        kernel, forms = (3, 3, channels, channels), named(convolve, "patches")
        decide(f"conv 3x3, {image}", forms, image, kernel, "convolution")
    image = side // 2, side // 2, sizes.channels[-1]
    forms = named(convolve_depthwise, "shifts")
    decide(f"depthwise 3x3, {image}", forms, image, (3, 3, 1, image[-1]), "depthwise")
    volume = *(side // 2,) * 3, 8
    forms = named(convolve_3d, "patches")
    decide(f"conv 3x3x3, {volume}", forms, volume, (3, 3, 3, 8, 8), "volumes")
    for window, strides, padding in ((2, 2, 0), (3, 2, 1)):
        static = {"window_shape": (window,) * 2, "strides": (strides,) * 2}
        static["padding"] = ((padding, padding),) * 2
        ours, window_form = (
            lambda x, k, form=form, static=static: form(x * k, **static)
            for form in (shifted._pool_padded, nn.max_pool)
        )
        forms = {"shifts": ours, "window": window_form}
        forms = forms if _on_cpu() else dict(reversed(forms.items()))
        kernel = 1, 1, 1, image[-1]
        decide(f"max pool {window}x{window}, stride {strides}", forms, image, kernel, "pool")
    return decisions


def round_decisions(sizes: Sizes) -> list[Decision]:
    """The forms of convolutions in rounds, and layouts."""
    decisions, side = [], sizes.side
    local = fa.Local(batch_size=sizes.batch, learning_rate=0.05, steps=sizes.steps)
    for name in sizes.networks:
        shape = (28, 28, 1) if name == "cnn_fedgbo" else (side, side, 3)
        data = partial(federated, shape, sizes.cohort, 2 * sizes.batch)

        def run(layout, form=None, name=name, shape=shape, data=data):
            spec = name if form is None else f"{name}:convolutions={form}"
            return rounds(models.make(spec, shape, 10), data(), local, sizes.cohort, layout)

        plain = name.partition(":")[0]
        if "mlp" not in name:
            forms = ("auto", "patches", "lax") if _on_cpu() else ("auto", "patches")
            made = {form: partial(run, str(sizes.chunk), form) for form in forms}
            decisions.append(Decision(f"{plain}, chunks of {sizes.chunk}", made, "convolution"))
        layouts = ("auto", "vmapped", str(sizes.chunk), "sequential")
        made = {layout: partial(run, layout) for layout in layouts}
        decisions.append(Decision(f"layout, {plain}", made, "layout"))
    return decisions


def clock_decisions(sizes: Sizes) -> list[Decision]:
    """Waves against single dispatches, mapped or not, and merged plans against plans alone."""
    clients, seeds, method = sizes.chunk * 2, 3, "fedasync"
    data = federated((28, 28), clients, sizes.batch)
    problem = models.make("mlp:hidden=200,layers=2", (28, 28), 10)
    local = fa.Local(batch_size=sizes.batch, learning_rate=0.05, steps=sizes.steps)
    algorithm = fa.algorithms.algorithms[method](problem, local)
    planner = planners.make(METHODS[method].replace("steps=50", f"steps={sizes.steps}"))
    system = system_models.make("simulated:speeds=normal")
    plans = [planner(system(seed), clients, arrivals=sizes.arrivals) for seed in range(seeds)]

    def waves(some, slots="auto", layout="auto"):
        return Waves(algorithm, data, some, None, slots, layout)

    def alone():
        runs = [waves([plan]) for plan in plans]
        return lambda: [run() for run in runs]

    layouts = {"auto": waves, "sequential": partial(waves, layout="sequential")}
    layouts["vmapped"] = partial(waves, layout="vmapped")
    merged: dict[str, Callable[[], Run]] = {"merged": partial(waves, plans), "alone": alone}
    if _on_cpu():
        merged = dict(reversed(merged.items()))
    return [
        Decision(
            "virtual clock, slots of a wave",
            {"auto": partial(waves, plans[:1]), "1": partial(waves, plans[:1], 1)}
            | {str(n): partial(waves, plans[:1], n) for n in (4, 16)},
            "waves",
        ),
        Decision(
            "virtual clock, layout",
            {name: partial(make, plans[:1]) for name, make in layouts.items()},
            "clock",
        ),
        Decision(f"virtual clock, plans of {seeds} seeds", merged, "merged"),
    ]


def loop_decision(sizes: Sizes) -> Decision:
    """Local steps of a perceptron by hand, mapped over the cohort, in loops of both kinds."""
    width, number = 200, np.full(sizes.cohort, sizes.steps, np.int32)
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (sizes.cohort, sizes.batch, 784))
    params = [jax.random.normal(keys[1], (784, width)), jax.random.normal(keys[2], (width, 10))]

    def run(known) -> Run:
        @jax.jit
        @partial(jax.vmap, in_axes=(None, 0, 0))
        def client(params, x, number):
            def loss(params):
                return jnp.square(jnp.tanh(x @ params[0]) @ params[1]).mean()

            def step(_, params):
                return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss)(params))

            return jax.lax.fori_loop(0, sizes.steps if known else number, step, params)

        return lambda: client(params, x, number)

    forms = {"traced number": partial(run, False), "known number": partial(run, True)}
    return Decision("loop over local steps", forms, "loops")


def measure(decision: Decision, turns: int, until: float) -> dict[str, list[float] | str]:
    """Seconds of each form in turns, or why there are none."""
    runs, seconds = {}, dict[str, list[float] | str]()
    for form, make in decision.forms.items():
        if time.monotonic() > until:
            seconds[form] = "no time left"
            continue
        try:
            runs[form] = make()
            jax.block_until_ready(runs[form]())  # compiles
            seconds[form] = []
        except jax.errors.JaxRuntimeError as error:
            seconds[form] = str(error).strip().splitlines()[0][:80]
            runs.pop(form, None)
    default, *_ = decision.forms
    for _ in range(turns):
        taken = {}
        for form, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            taken[form] = time.perf_counter() - start
            seconds[form].append(taken[form])
        for form in set(taken) - {default}:  # what is far behind is not run again
            if taken[form] > FAR_BEHIND * min(taken.values()):
                runs.pop(form)
    return seconds


def verdict(decision: Decision, seconds: dict[str, list[float] | str]) -> dict[str, Any]:
    """The ratios to the default, and what follows from them."""
    default, *_ = decision.forms
    measured = {form: times for form, times in seconds.items() if isinstance(times, list)}
    record: dict[str, Any] = {"decision": decision.name, "default": default}
    record["seconds"] = {form: statistics.median(times) for form, times in measured.items()}
    record["failed"] = {form: why for form, why in seconds.items() if isinstance(why, str)}
    if default not in measured:
        unknown = f"unknown without a time of the default, see {line_of(decision.where)}"
        return record | {"ratios": {}, "verdict": unknown}
    ratios = {
        form: float(np.median(np.divide(times, measured[default][: len(times)])))
        for form, times in measured.items()
    }
    record["ratios"] = ratios
    fastest = min(ratios, key=ratios.__getitem__)
    if ratios[fastest] >= CHANGE:
        return record | {"verdict": f"{default} is right"}
    return record | {"verdict": f"change to {fastest}: {line_of(decision.where)}"}


def recipe(sizes: Sizes, turns: int) -> dict[str, Any]:
    """Seconds a round of the published recipe with the default layout, and of all its rounds."""
    clients, cohort = sizes.recipe
    problem = classifier(SmallNetwork(), (sizes.side, sizes.side, 3))
    data = federated((sizes.side, sizes.side, 3), clients, 50)
    local = fa.Local(batch_size=10, learning_rate=0.1, epochs=1)
    run = rounds(problem, data, local, cohort, number=10)
    test = {"x": jnp.zeros((sizes.tested, sizes.side, sizes.side, 3))}
    test["y"] = jnp.zeros(sizes.tested, jnp.int32)
    evaluate = fa.make_evaluate(problem)
    seconds = []
    for _ in range(turns + 1):
        start = time.perf_counter()
        jax.block_until_ready(evaluate(fa.core.Model(run().params), test))
        seconds.append(time.perf_counter() - start)
    each = statistics.median(seconds[1:]) / 10
    return {"first": seconds[0], "round": each, "minutes": 1_500 * each / 60}


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the decisions' names")
    parser.add_argument("--small", action="store_true", help="sizes that show nothing, for a test")
    parser.add_argument("--out", type=Path, help="a JSON file of all numbers")
    given = parser.parse_args(arguments)
    sizes, until = SMALL if given.small else Sizes(), time.monotonic() + 60 * given.minutes
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit", "unknown")
    print(f"{device.device_kind}, {memory} bytes of memory, jax {jax.__version__}")
    records = []
    if any(part in "recipe" for part in given.only):
        found = recipe(sizes, given.turns)
        print(
            f"recipe of pfl-research, CIFAR-10: {found['round']:.4g} s a round with evaluation, "
            f"1,500 rounds in {found['minutes']:.3g} minutes; first ten {found['first']:.3g} s",
            flush=True,
        )
        records.append({"decision": "recipe", **found})
    every = layer_decisions(sizes) + [loop_decision(sizes)]
    every += round_decisions(sizes) + clock_decisions(sizes)
    for decision in every:
        if not any(part in decision.name for part in given.only):
            continue
        record = verdict(decision, measure(decision, given.turns, until))
        ratios = ", ".join(f"{form} {ratio:.2f}" for form, ratio in record["ratios"].items())
        failed = "".join(f"; {form}: {why}" for form, why in record["failed"].items())
        print(f"{record['decision']}: {ratios}{failed} -> {record['verdict']}", flush=True)
        records.append(record)
    if given.out is not None:
        given.out.write_text(json.dumps(records, indent=1))
    return records


if __name__ == "__main__":
    main()
