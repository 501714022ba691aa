"""A round of fedjax: federated_averaging over an in-memory federated data set, a model of Haiku.

COMMAND   python benchmarks/peers/run_fedjax.py --work cnn --cohort 50 --rounds 5 --backend jit
          python benchmarks/peers/run_fedjax.py --backend pmap --devices 2

The release needs a jax of its time; a newer one lacks one name, which is restored here (the head of
its repository uses the new name).
"""

import os
from importlib.metadata import version

import work

given = work.arguments(backend="jit", devices=1)
# old releases of jax have no jax_num_cpu_devices; both read this before they start
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={given.devices}"

import fedjax  # noqa: E402
import haiku as hk  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map


def make_model(task):
    def forward(batch):
        x = batch["x"]
        for features in task.channels:
            x = hk.Conv2D(features, kernel_shape=3, padding="VALID")(x)
            x = jax.nn.relu(hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
        x = hk.Flatten()(x)
        for width in task.widths[:-1]:
            x = jax.nn.relu(hk.Linear(width)(x))
        return hk.Linear(task.widths[-1])(x)

    def loss(batch, logits):
        return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits)

    sample = {"x": np.zeros((1, *task.image), np.float32), "y": np.zeros(1, np.int32)}
    return fedjax.create_model_from_haiku(hk.transform(forward), sample, loss, {})


def main():
    task = work.WORKS[given.work]
    images, labels = work.client_examples(given)
    clients = {
        str(i).zfill(4): {"x": x, "y": y}
        for i, (x, y) in enumerate(zip(images, labels, strict=True))
    }

    clock = work.Clock()
    fedjax.set_for_each_client_backend(given.backend)
    data = fedjax.InMemoryFederatedData(clients)
    model = make_model(task)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(work.RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(work.BATCH, num_epochs=1),
    )
    names = list(model.init(jax.random.PRNGKey(0)))  # in the order of the layers
    layers = work.first_params(task)
    state = algorithm.init(
        {name: {"w": kernel, "b": bias} for name, (kernel, bias) in zip(names, layers, strict=True)}
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, given.cohort, seed=0)
    for _ in range(given.rounds):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        clock.lap()
    layers = [(np.asarray(state.params[n]["w"]), np.asarray(state.params[n]["b"])) for n in names]
    work.report(given, clock, layers, version=version("fedjax"))


if __name__ == "__main__":
    main()
