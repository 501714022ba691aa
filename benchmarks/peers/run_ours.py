"""A round by our public interface.

COMMAND   python benchmarks/peers/run_ours.py --work cnn --cohort 50 --rounds 5 --devices 2

`--layout` is that of `make_engine`, and `--devices` is the number of CPU devices over which the
cohort is divided (1 is the default of `make_engine`). The first round is a call of its own; then up
to `--window` rounds are one call, as in `simulate` between two evaluations. The draw of the cohorts
is included, as in the rivals' rounds.
"""

import time

import jax
import numpy as np
import work

given = work.arguments(layout="auto", devices=1, window=10)
jax.config.update("jax_num_cpu_devices", given.devices)  # before jax starts

import jax.numpy as jnp  # noqa: E402

import fedjax_algos as fa  # noqa: E402


def tree_of(layers):
    """The params under the names of our models."""
    named = [{"kernel": kernel, "bias": bias} for kernel, bias in layers]
    images = [layer for layer in named if layer["kernel"].ndim == 4]
    tree = {f"Conv_{i}": layer for i, layer in enumerate(images)}
    dense = {f"Dense_{i}": layer for i, layer in enumerate(named[len(images) :])}
    return tree | {"Perceptron_0": dense} if images else dense


def layers_of(tree):
    images = [tree[name] for name in sorted(tree) if name.startswith("Conv_")]
    dense = tree.get("Perceptron_0", tree)
    named = images + [dense[name] for name in sorted(dense) if name.startswith("Dense_")]
    return [(np.asarray(layer["kernel"]), np.asarray(layer["bias"])) for layer in named]


def gemm_rate():
    """GFLOP/s of matrix products of 1024: of one device, or of all at once, whichever is larger."""
    matrices = [jax.device_put(jnp.ones((1024, 1024)), device) for device in jax.devices()]
    multiply = jax.jit(lambda a: a @ a)
    best = 0.0
    for used in (matrices[:1], matrices):
        jax.block_until_ready([multiply(matrix) for matrix in used])
        taken = []
        for _ in range(9):
            start = time.perf_counter()
            jax.block_until_ready([multiply(matrix) for matrix in used])
            taken.append(time.perf_counter() - start)
        best = max(best, len(used) * 2 * 1024**3 / float(np.median(taken)) / 1e9)
    return best


def main():
    task = work.WORKS[given.work]
    images, labels = work.client_examples(given)
    flat = images.reshape(-1, *task.image), labels.reshape(-1)
    rows = np.split(np.arange(labels.size), given.cohort)
    data = fa.federate({"x": flat[0], "y": flat[1]}, fa.Partition.of(rows))
    jax.block_until_ready(data)

    clock = work.Clock()
    problem = {
        "cnn": lambda: fa.models.cnn_fedgbo(task.image, work.CLASSES),
        "mlp": lambda: fa.models.mlp(task.image, work.CLASSES, hidden=200, layers=2),
        "linear": lambda: fa.models.linear(task.image, work.CLASSES),
    }[given.work]()
    local = fa.Local(work.BATCH, work.RATE, steps=task.steps)
    divided = {"devices": given.devices} if given.devices > 1 else {}
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local), given.layout, **divided)
    if divided:
        data = engine.put_data(data)
    population = fa.Population(given.cohort, given.cohort, labels.size)
    state = engine.init(0, population, tree_of(work.first_params(task)))
    cohorts = fa.participation.Cohorts(data.counts(), local, cohort_size=given.cohort, seed=0)
    done = 0
    while done < given.rounds:
        number = min(given.window, given.rounds - done) if done else 1
        index = np.arange(given.window) % number  # the same shape, and so the same program
        some = jax.tree.map(lambda leaf, index=index: leaf[index], cohorts.dispatches(number))
        state, _ = jax.block_until_ready(engine.rounds(state, data, some, number))
        clock.lap(number)
        done += number
    layers = layers_of(jax.device_get(state.server.params))
    work.report(given, clock, layers, gemm_gflops=gemm_rate(), version=fa.__version__)


if __name__ == "__main__":
    main()
