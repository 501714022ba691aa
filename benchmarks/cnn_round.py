"""The CNN round by the public interface, against code written for nothing else, and nn.Conv.

COMMAND   python benchmarks/cnn_round.py
EXPECTED  ratio to the best hand-written round below 1.3; nn.Conv at least 5 times slower
TIME      three minutes on two CPU cores

FedAvg, 50 clients of 200 images, ten local steps of batch 20, 28x28 images, conv3 32, pool,
conv3 64, pool, dense 512, 62 classes (870,334 parameters). By hand: one jit, clients in a scan,
batches cut in advance, no masks, no metrics, no permutation; on one device and on one for each
core. nn.Conv: the same model and engine with `lax` convolutions, on two clients, since a whole
round takes half a minute. Runs alternate; medians.
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
from fedjax_algos.schedules import Synchronous

jax.config.update("jax_num_cpu_devices", os.cpu_count())  # before anything asks for a device

CLIENTS, STEPS, BATCH, RATE, REPEATS = 50, 10, 20, 0.1, 7
# forward and backward but for the images' gradient, two for a multiply-add
FLOPS = 2 * (3 * 3_275_904 - 194_688) * CLIENTS * STEPS * BATCH


def by_hand(images, labels):
    """A round as a function of the params, with everything known that can be."""

    def logits(params, x):
        for name in ("Conv_0", "Conv_1"):
            layer = params[name]
            x = convolve(x, layer["kernel"], padding="VALID") + layer["bias"]
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


def by_interface(data, clients, layout, convolutions):
    """A round as a function of nothing, its state kept inside."""
    problem = fa.models.cnn_fedgbo((28, 28), 62, convolutions=convolutions)
    local = fa.Local(BATCH, RATE, steps=STEPS)
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local, weighting="uniform"), layout)
    cohort = np.arange(clients, dtype=np.int32)[None]
    schedule = Synchronous(
        data.counts(), local, cohort_size=clients, seed=0, sampler=lambda *_: cohort
    )
    visits = jax.tree.map(lambda leaf: leaf[0], schedule.visits(1))
    state = engine.init(0, fa.Population(CLIENTS, clients, CLIENTS * STEPS * BATCH))

    def round():
        nonlocal state
        state, _ = engine.round(state, data, visits)
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
    matrix = jnp.ones((1024, 1024))
    multiply = jax.jit(lambda a: a @ a)
    rounds = {
        "by hand": lambda: hand(params),
        "by hand, a device a core": lambda: hand_sharded(params),
        "interface": interface,
        "interface, chunks of 5": chunked,
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
