"""What evaluations of clients with models of their own share: their training and their metrics."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.analysis.evaluation import evaluate_batch
from fedjax_algos.core import Dispatch, Model
from fedjax_algos.core.limits import check_int32
from fedjax_algos.core.local_training import local_training
from fedjax_algos.data.federated_data import client_view
from fedjax_algos.engine.exchange import draw
from fedjax_algos.engine.slots import chunk_size
from fedjax_algos.participation.cohorts import full_steps, rate_at

# The dispatch number of personal training. Runs number from 0, so it shares no draws with a run.
_DISPATCH_NUMBER = -1
_MAX_AUTO_CHUNK = 32  # clients that "auto" maps: each has its own weights, and there may be many


def make_tune(problem, local):
    """Builds `(model, train, client, num_steps, seed) -> Model`, a client's local steps.

    Args:
      problem: what is learned.
      local: how a client trains.
    """
    train_client = local_training(problem, local)

    def tune(model, train, client, num_steps, seed):
        # an order of its own, whatever the batches of the run
        draws = draw("short", seed, client, jnp.int32(_DISPATCH_NUMBER))
        data = client_view(train, client, draws.order, model.statistics, frozen=model.frozen)
        zero, real = jnp.int32(0), jnp.result_type(float)
        dispatch = Dispatch(
            client=client,
            number=jnp.int32(_DISPATCH_NUMBER),
            server_step=zero,
            num_steps=num_steps,
            full_steps=num_steps,
            num_examples=data.num_examples,
            share=data.num_examples.astype(real) / train.indices.shape[0],
            learning_rate=jnp.asarray(rate_at(local.learning_rate, np.int32(0)), real),
            first_step=zero,
        )
        trained = train_client(model.params, data, dispatch, draws.key)
        return Model(trained.params, trained.report.statistics, model.frozen)

    return tune


def map_clients(function, num_clients, layout, clients, num_steps, *inputs):
    """`function(client, num_steps, *inputs)` of all clients, chunk by chunk.

    Args:
      function: of one client, to metrics of float[] or float[classes].
      num_clients: N, which pads the last chunk, with no steps.
      layout: as for `make_evaluate_personal`.
      clients: int32[number]: their ids.
      num_steps: int32[number].
      *inputs: leaves [number].

    Returns:
      The metrics, with leaves float[number] or float[number, classes].
    """
    number = clients.size
    at_once = min(number, _MAX_AUTO_CHUNK) if layout == "auto" else number
    chunk = chunk_size(layout, at_once)
    padding = (0, -number % chunk)
    clients = jnp.pad(clients, padding, constant_values=num_clients)  # takes no step
    work = clients, *(jnp.pad(leaf, padding) for leaf in (num_steps, *inputs))
    if chunk == 1:  # without vmap convolutions stay dense, and loops have their own lengths
        return jax.lax.map(lambda each: function(*each), work)
    chunks = jax.tree.map(lambda leaf: leaf.reshape(-1, chunk), work)
    metrics = jax.lax.map(lambda each: jax.vmap(function)(*each), chunks)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:number], metrics)


def checked_steps(train, test, local, num_steps):
    """int32[num_clients]: the local steps of each client.

    Args:
      train: the clients' training examples.
      test: the examples of the same clients to evaluate on.
      local: gives the steps if `num_steps` is None.
      num_steps: int or int[num_clients], or None.

    Raises:
      ValueError: for different numbers of clients, and steps below 0 or of another shape.
    """
    if train.num_clients != test.num_clients:
        raise ValueError(
            f"there are {train.num_clients} clients to train and {test.num_clients} to test; "
            "give both sets of examples for the same clients"
        )
    counts = train.counts()
    steps = full_steps(counts, local) if num_steps is None else np.asarray(num_steps)
    if steps.dtype.kind not in "iu" or steps.min() < 0:
        raise ValueError(
            f"num_steps={steps.min()} is out of range; give whole numbers of at least 0"
        )
    if steps.ndim and steps.shape != counts.shape:
        raise ValueError(
            f"num_steps have shape {steps.shape} for {len(counts)} clients; give one number, "
            "or one for each client"
        )
    check_int32("num_steps", steps.max(), "give fewer")
    return np.where(counts > 0, steps, 0).astype(np.int32)


def evaluate_client(problem, model, data, client, size):
    """Metrics of one client's examples, in ceil(n_i / size) batches.

    Args:
      problem: what is learned.
      model: of the client.
      data: all clients' examples.
      client: int32[]: its id.
      size: examples of a batch.
    """
    offset = data.offsets[client]
    count = data.offsets[client + 1] - offset

    def measure(step):
        slots = step * size + jnp.arange(size, dtype=jnp.int32)
        real = slots < count
        rows = data.indices[offset + jnp.minimum(slots, count - 1)]
        return evaluate_batch(problem, model, data.examples, rows, real)

    def add(step, metrics):
        return jax.tree.map(jnp.add, metrics, measure(step))

    shapes = jax.eval_shape(measure, 0)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.fori_loop(0, -(-count // size), add, zeros)
