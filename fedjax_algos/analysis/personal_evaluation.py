"""Evaluates personal models: each client's own, or the common model after local steps."""

import functools
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.analysis import evaluation
from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, Array, Dispatch, Local, Metrics, Model, Problem, checks
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.trees import take
from fedjax_algos.data.federated_data import FederatedData, client_view
from fedjax_algos.engine.checks import check_algorithm, check_num_clients
from fedjax_algos.engine.compilation import round_up_size
from fedjax_algos.engine.exchange import draw, initialised_row, shared_of
from fedjax_algos.engine.placed.devices import one_copy
from fedjax_algos.engine.placed.processes import gathered
from fedjax_algos.engine.slots import Layout, chunk_size
from fedjax_algos.engine.state import FederatedState, RowTable
from fedjax_algos.models.outputs import LabelCheck
from fedjax_algos.participation.cohorts import full_steps, rate_at

# The dispatch number of personal training. Runs count from 0, so no run has the same draws.
_DISPATCH_NUMBER = -1
_MAX_AUTO_CHUNK = 32  # the most clients that "auto" maps at once, as each has its own weights
_MAX_ROWS = 128  # rows of host memory that the device holds at once


class EvaluatePersonal(Protocol):
    """The signature of a function that `make_evaluate_personal` returns."""

    def __call__(
        self,
        model: Model,
        train: FederatedData,
        test: FederatedData,
        *,
        seed: int = ...,
        num_steps: int | Array | None = None,
    ) -> Metrics:
        """Trains each client from a common model and returns metrics as `make_evaluate_clients`.

        Args:
          model: the common model; a client without training examples keeps it.
          train: the clients' training examples.
          test: the test examples of the same clients.
          seed: the seed of the batches and the training keys.
          num_steps: int or int[num_clients], at least 0; None takes the steps from `local`.
        """


def make_evaluate_personal(
    problem: Problem, local: Local, *, batch_size: int = 128, layout: Layout = "auto"
) -> EvaluatePersonal:
    """Builds an evaluation of each client's own model, after local training from a common one.

    `y_i <- x`, then num_steps times `y_i <- y_i - rate * transform(g)` on client i's training
    examples, with the rate, batches and transform of `local`. The metrics are measured for y_i on
    client i's examples in `test`. The model's statistics are also personal. Batches and training
    keys depend on (seed, client) alone, and no dispatch of a run uses the same ones.

    Source: Wang et al., "Federated Evaluation of On-device Personalization", 2019,
    https://arxiv.org/abs/1910.10252.

    Args:
      problem: the problem that is learned.
      local: the local training; its steps or epochs are the default number of steps.
      batch_size: examples of a client computed at once, at most the size of the largest client.
      layout: as for `make_engine`, but "auto" maps at most 32 clients at once, because each has its
        own copy of the model. The layouts' results agree up to rounding.

    Raises:
      ValueError: for a batch size below 1, an unknown layout, or local work that is not exactly one
        of steps and epochs; when called, for different numbers of clients, steps below 0, or as for
        `make_evaluate`.
    """
    checks.check_problem(problem)
    checks.check_whole("batch_size", batch_size)
    chunk_size(layout, 1)
    full_steps(np.ones(1, np.int32), local)
    check = _data_check(problem)
    compute = _evaluation(problem, local, layout, lambda model, rows, client, place: model)

    def evaluate(model, train, test, *, seed=0, num_steps=None):
        evaluation.check_model(problem, model)
        checks.check_seed(seed)
        check(train=train, test=test)
        steps = _checked_steps(train, test, local, num_steps)
        size = int(max(min(batch_size, test.counts().max()), 1))
        clients = np.arange(test.num_clients, dtype=np.int32)
        return compute(model, (), clients, test, train, steps, np.uint32(seed), size=size)

    return evaluate


class EvaluateOwn(Protocol):
    """The signature of a function that `make_evaluate_own` returns."""

    def __call__(
        self,
        state: FederatedState,
        data: FederatedData,
        *,
        train: FederatedData | None = None,
        num_steps: int | Array | None = None,
        seed: int = ...,
    ) -> Metrics:
        """Measures each client's own model and returns metrics as `make_evaluate_clients`.

        Args:
          state: the state of an engine or an executor; not consumed.
          data: the clients' training, held-out or test examples, to evaluate on.
          train: examples that each client first trains its own model on; None for no training.
          num_steps: the steps of this training, as in `EvaluatePersonal`.
          seed: the seed of this training.

        Raises:
          ValueError: for a state that was consumed or has other clients than the data, and for
            steps that are out of range.
        """


def make_evaluate_own(
    algorithm: Algorithm,
    *,
    local: Local | None = None,
    batch_size: int = 128,
    layout: Layout = "auto",
) -> EvaluateOwn:
    """Builds an evaluation of each client's own model, made by `algorithm.personal`.

    A client that has not been dispatched has the row of `client_init`. An algorithm without
    `personal` has one model for all clients.

    Args:
      algorithm: the algorithm whose states are evaluated.
      local: how clients train further, if they do; None is the algorithm's `local`. For a client's
        step of Per-FedAvg, give `steps=1` and its `alpha` as the rate.
      batch_size, layout: as in `make_evaluate_personal`.

    Raises:
      TypeError: for an object that is not an algorithm.
      ValueError: as for `make_evaluate_personal`.
    """
    check_algorithm(algorithm)
    checks.check_whole("batch_size", batch_size)
    chunk_size(layout, 1)
    problem, local = algorithm.problem, local or algorithm.local
    evaluate_common, check = evaluation.make_evaluate_clients(problem), _data_check(problem)

    def model_of(state, rows, client, place):
        model = state.model
        if algorithm.personal is not None:
            row, known = take(rows, place), take(state.dispatched, client)
            row = initialised_row(algorithm, shared_of(state), client, row, known)
            model = algorithm.personal(state.server, row)._replace(frozen=state.frozen)
        if isinstance(model.statistics, tuple) and model.statistics == ():
            model = model._replace(statistics=state.statistics)
        return model

    compute = _evaluation(problem, local, layout, model_of)

    def evaluate(state, data, *, train=None, num_steps=None, seed=0):
        fix = "give what engine.init or a round returned"
        checks.check_kind("state", state, FederatedState, fix)
        check(data=data, **({} if train is None and num_steps is None else {"train": train}))
        checks.check_not_consumed(state)
        checks.check_seed(seed)
        data, train = one_copy((data, train))
        (device,) = data.offsets.devices()
        shared = jax.device_put(gathered(state._replace(clients=())), device)
        if algorithm.personal is None and train is None:
            return evaluate_common(shared.model, data)
        steps = np.zeros(data.num_clients, np.int32)
        steps = steps if train is None else _checked_steps(train, data, local, num_steps)
        if algorithm.personal is not None and not isinstance(state.dispatched, tuple):
            check_num_clients(state, data.num_clients)
        # rounded, so clients of similar sizes on other seeds compile nothing
        size = min(batch_size, round_up_size(max(int(data.counts().max()), 1)))
        parts = [
            compute(shared, part, clients, data, train, steps, np.uint32(seed), size=size)
            for clients, part in _pieces(state.clients, data.num_clients, device)
        ]
        metrics = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
        return jax.tree.map(lambda leaf: leaf[: data.num_clients], metrics)

    return evaluate


def _evaluation(problem, local, layout, model_of):
    """Builds a compiled evaluation of `model_of(state, rows, client, place)` after local steps."""
    train_client = local_training(problem, local)

    def trained_model(model, train, client, num_steps, seed):
        # the dispatch number makes the batches independent of a run's
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

    @functools.partial(jax.jit, static_argnames="size")
    def compute(state, rows, clients, data, train, num_steps, seed, *, size):
        def of_client(client, steps, place):
            model = model_of(state, rows, client, place)
            model = model if train is None else trained_model(model, train, client, steps, seed)
            return _evaluate_client(problem, model, data, client, size)

        number, num_clients = clients.size, data.num_clients
        chunk = chunk_size(layout, min(number, _MAX_AUTO_CHUNK) if layout == "auto" else number)
        positions = jnp.arange(number, dtype=jnp.int32)
        # the padding takes no step: its client is one past the last
        padded = jnp.pad(clients, (0, -number % chunk), constant_values=num_clients)
        work = padded, jnp.pad(num_steps, (0, 1))[padded], jnp.pad(positions, (0, -number % chunk))
        # without vmap, convolutions stay dense and each loop has its own length
        chunk = None if chunk == 1 else chunk
        metrics = jax.lax.map(lambda each: of_client(*each), work, batch_size=chunk)
        return jax.tree.map(lambda leaf: leaf[:number], metrics)

    return compute


def _data_check(problem):
    """Builds a check of the clients' data, by the names of the arguments."""
    check_clients = LabelCheck(problem, "the clients' examples")
    check_training = LabelCheck(problem, "the training examples")

    def check(**stores):
        for name, data in stores.items():
            checks.check_kind(name, data, FederatedData, "give what federate returned")
            (check_training if name == "train" else check_clients)(data.examples)

    return check


def _pieces(rows, num_clients, device):
    """Yields (client ids, their rows) in equal shapes; id num_clients pads the last piece."""
    if not isinstance(rows, RowTable):
        yield np.arange(num_clients, dtype=np.int32), jax.device_put(gathered(rows), device)
        return
    size = min(num_clients, _MAX_ROWS)
    for start in range(0, num_clients, size):
        clients = np.minimum(np.arange(start, start + size, dtype=np.int32), num_clients)
        trees = [rows[client] for client in clients.tolist()]
        yield clients, jax.device_put(jax.tree.map(lambda *x: np.stack(x), *trees), device)


def _checked_steps(train, test, local, num_steps):
    """Returns each client's local steps, int32[num_clients]; None takes them from `local`."""
    counts = train.counts()
    steps = full_steps(counts, local) if num_steps is None else np.asarray(num_steps)
    for end in (steps.min(), steps.max()):
        checks.check_whole("num_steps", end.item(), 0)
    found = f"{len(counts)} clients train, {test.num_clients} are tested"
    fix = "give data of the same clients, and one num_steps, or one for each client"
    fits = test.num_clients == len(counts) and steps.shape in ((), counts.shape)
    require(fits, f"{found} and num_steps has shape {steps.shape}; {fix}")
    return np.where(counts > 0, steps, 0).astype(np.int32)


def _evaluate_client(problem, model, data, client, size):
    """Computes the metrics of one client's examples in ceil(n_i / size) batches."""
    offset = data.offsets[client]
    count = data.offsets[client + 1] - offset

    def measure(step):
        slots, real = evaluation.places(step, size, count)
        rows = data.indices[offset + slots]
        return evaluation.evaluate_batch(problem, model, data.examples, rows, real)

    def add(step, metrics):
        return jax.tree.map(jnp.add, metrics, measure(step))

    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(measure, 0))
    return jax.lax.fori_loop(0, -(-count // size), add, zeros)
