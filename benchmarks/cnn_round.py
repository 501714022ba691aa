"""The CNN round by the public interface, against code written for this round alone, and nn.Conv.

COMMAND   python benchmarks/cnn_round.py
EXPECTED  the interface below 1.3 of the best hand-written round; nn.Conv at least 5 times slower
TIME      three minutes on two CPU cores

FedAvg, 50 clients of 200 images, ten local steps of batch 20, 28x28 images, conv3 32, pool,
conv3 64, pool, dense 512, 62 classes (870,334 parameters). By hand: one jit, clients in a scan,
batches cut in advance, no masks, no metrics, no permutation; on one device and on one for each
core. Products alone: the matrix products of the round at their shapes and nothing else, on a device
for each core; no round in this form can be faster. GFLOP/s are those of the plain convolution,
whatever is really multiplied. nn.Conv: the same model and engine with `lax` convolutions, on two
clients, because a whole round takes half a minute. Runs alternate, and medians are printed.
"""

import functools
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_algos as fa
from fedjax_algos.models import convolve, max_pool
from fedjax_algos.participation import Cohorts

jax.config.update("jax_num_cpu_devices", os.cpu_count())  # before jax starts

CLIENTS, STEPS, BATCH, RATE, REPEATS = 50, 10, 20, 0.1, 7
# forward and backward without the images' gradient; a multiply-add counts as two
FLOPS = 2 * (3 * 3_275_904 - 194_688) * CLIENTS * STEPS * BATCH


def by_hand(images, labels):
    """A round as a function of the params, with everything else known in advance."""

    def logits(params, x):
        for name in ("Conv_0", "Conv_1"):
            layer = params[name]
            x = convolve(x, layer["kernel"], padding="VALID", pool=(2, 2)) + layer["bias"]
            x = jax.nn.relu(max_pool(x, (2, 2), (2, 2)))
        x = x.reshape(len(x), -1)
        first, last = params["Perceptron_0"]["Dense_0"], params["Perceptron_0"]["Dense_1"]
        x = jax.nn.relu(x @ first["kernel"] + first["bias"])
        return x @ last["kernel"] + last["bias"]

    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()

    def clients(params, images, labels):
        def client(total, batches):
            def step(k, y):
                gradient = jax.grad(loss)(y, batches[0][k], batches[1][k])
                return jax.tree.map(lambda y, g: y - RATE * g, y, gradient)

            trained = jax.lax.fori_loop(0, STEPS, step, params)
            return jax.tree.map(jnp.add, total, trained), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        total, _ = jax.lax.scan(client, zeros, (images, labels))
        return jax.tree.map(lambda t: t / CLIENTS, total)

    @jax.jit
    def one_device(params):
        return clients(params, images, labels)

    mesh = jax.make_mesh((jax.device_count(),), ("clients",))
    shared, divided = jax.P(), jax.P("clients")

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(shared, divided, divided), out_specs=shared
    )
    def sharded(params, images, labels):
        params = jax.tree.map(lambda p: jax.lax.pcast(p, "clients", to="varying"), params)
        return jax.lax.psum(clients(params, images, labels), "clients")

    everywhere = jax.sharding.NamedSharding(mesh, divided)
    parts = jax.device_put(images, everywhere), jax.device_put(labels, everywhere)

    def all_devices(params):
        return sharded(params, *parts)

    return one_device, all_devices


# number, rows, inputs and outputs of each layer's products; the images have no gradient
LAYERS = [
    (1, BATCH * 26 * 26, 9, 32),
    (16, BATCH * 5 * 5, 32, 64),  # a tile of Winograd's form is a window of the pool
    (1, BATCH, 1600, 512),
    (1, BATCH, 512, 62),
]


def products_alone():
    """A round's matrix products, as a function of nothing, on a device for each core."""
    mesh = jax.make_mesh((jax.device_count(),), ("clients",))
    inputs = [
        tuple(jnp.ones((number, *shape)[number == 1 :]) for shape in ((n, k), (k, m), (n, m)))
        for number, n, k, m in LAYERS
    ]

    def layer(rows, weights, gradient):
        if rows.ndim == 3:
            return jax.vmap(layer)(rows, weights, gradient)
        wide, narrow = (gradient, rows) if rows.shape[1] > gradient.shape[1] else (rows, gradient)
        return rows @ weights, gradient @ weights.T, wide.T @ narrow

    def step(_, carry):
        inputs, _ = jax.lax.optimization_barrier(carry)  # otherwise XLA would run the loop once
        first, *others = (layer(*each) for each in inputs)
        return inputs, [(first[0], first[2]), *others]

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False
    )
    def run(inputs):
        made = step(0, (inputs, ()))[1]
        number = CLIENTS // jax.device_count() * STEPS
        return jax.lax.fori_loop(0, number, step, (inputs, made))[1]

    inputs = jax.device_put(inputs, jax.sharding.NamedSharding(mesh, jax.P()))
    return lambda: run(inputs)


def by_interface(data, clients, layout, convolutions, devices=1):
    """A round as a function without arguments, which keeps its state."""
    problem = fa.models.cnn_fedgbo((28, 28), 62, convolutions=convolutions)
    local = fa.Local(BATCH, RATE, steps=STEPS)
    fedavg = fa.algorithms.fedavg(problem, local, weighting="uniform")
    engine = fa.make_engine(fedavg, layout, devices=devices)
    data = engine.put_data(data)
    cohort = np.arange(clients, dtype=np.int32)[None]
    cohorts = Cohorts(data.counts(), local, cohort_size=clients, seed=0, sampler=lambda *_: cohort)
    dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
    state = engine.init(0, fa.Population(CLIENTS, clients, CLIENTS * STEPS * BATCH))

    def round():
        nonlocal state
        state, _ = engine.round(state, data, dispatches)
        return state.server.params

    return round, state.server.params


def seconds(function):
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def main():
    rng = np.random.default_rng(0)
    total = CLIENTS * STEPS * BATCH
    x = rng.normal(size=(total, 28, 28)).astype(np.float32)
    y = rng.integers(0, 62, total).astype(np.int32)
    rows = np.split(np.arange(total), CLIENTS)
    data = fa.federate({"x": x, "y": y}, fa.Partition.of(rows))

    interface, params = by_interface(data, CLIENTS, "sequential", "auto")
    params = jax.tree.map(jnp.copy, params)
    shape = (CLIENTS, STEPS, BATCH)
    hand, hand_sharded = by_hand(
        jnp.asarray(x.reshape(*shape, 28, 28, 1)), jnp.asarray(y.reshape(shape))
    )
    chunked, _ = by_interface(data, CLIENTS, 5, "auto")
    divided, _ = by_interface(data, CLIENTS, "sequential", "auto", jax.device_count())
    matrix = jnp.ones((1024, 1024))
    multiply = jax.jit(lambda a: a @ a)
    rounds = {
        "by hand": lambda: hand(params),
        "by hand, a device a core": lambda: hand_sharded(params),
        "interface": interface,
        "interface, a device a core": divided,
        "interface, chunks of 5": chunked,
        "products alone": products_alone(),
    }
    for name, round in rounds.items():
        print(f"{name}: first round {seconds(round):.1f} s", flush=True)
    multiply(matrix).block_until_ready()
    taken = {name: [] for name in (*rounds, "gemm")}
    for _ in range(REPEATS):
        for name, round in rounds.items():
            taken[name].append(seconds(round))
        taken["gemm"].append(seconds(lambda: multiply(matrix)))
    medians = {name: float(np.median(values)) for name, values in taken.items()}
    gemm = 2 * 1024**3 / medians["gemm"]
    for name in rounds:
        best = np.minimum(taken["by hand"], taken["by hand, a device a core"])
        ratio = np.median(np.divide(taken[name], best))
        print(
            f"{name}: {medians[name]:.2f} s a round, {ratio:.2f} of the best by hand, "
            f"{FLOPS / medians[name] / 1e9:.0f} GFLOP/s, "
            f"{FLOPS / medians[name] / gemm:.0%} of the {gemm / 1e9:.0f} of a matrix product"
        )
    few = 2
    plain, _ = by_interface(data, few, "sequential", "lax")
    fast, _ = by_interface(data, few, "sequential", "auto")
    seconds(plain), seconds(fast)
    ratios = [seconds(plain) / seconds(fast) for _ in range(3)]
    print(f"nn.Conv in the same engine: {np.median(ratios):.1f} times slower ({few} clients)")


if __name__ == "__main__":
    main()
