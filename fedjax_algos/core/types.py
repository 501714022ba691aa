"""Types of models, problems, local work and dispatches.

Everything here is a NamedTuple of arrays or of pure functions.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_algos.base.reprs import describe, describe_tree
from fedjax_algos.core.example_noise import ExampleNoise
from fedjax_algos.core.options import Batches, RateBy

Array: TypeAlias = jax.Array | np.ndarray
Key: TypeAlias = jax.Array  # a typed key, made by jax.random.key
Params: TypeAlias = Any  # a tree of arrays
Statistics: TypeAlias = Any  # a tree of arrays
Batch: TypeAlias = Any  # a tree of arrays with a leading axis of examples
Outputs: TypeAlias = Any  # what a model computes from a batch
ServerState: TypeAlias = Any  # a NamedTuple with a field `params`
ClientState: TypeAlias = Any
Broadcast: TypeAlias = Any  # what a client downloads
Update: TypeAlias = Any  # what a client uploads
Contribution: TypeAlias = Any
Metrics: TypeAlias = dict[str, "Mean"]
MODEL_AXIS = "model"  # the axis of a mesh over the devices that compute one client together


class Population(NamedTuple):
    """Static facts about the clients that an algorithm's `init` may need.

    Attributes:
      num_clients: N, the number of clients.
      cohort_size: M, the expected number of clients in a round, which may be a fraction if cohorts
        have a random size.
      total_examples: sum of n_i over all clients.
      num_groups: groups that the server updates separately, such as FedAT's tiers.
      seed: uint32[]: the run's seed; the engine sets it. A server rule that draws random numbers
        keeps it in its state with the number of its steps; see `core.randomness.server_key`.
    """

    num_clients: int
    cohort_size: float
    total_examples: int
    num_groups: int = 1
    seed: Array = np.uint32(0)  # type: ignore[assignment]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class EqualSteps:
    """The `num_steps` of dispatches that all do the same number of local steps.

    It is compiled into the program, so that loops over steps have a fixed length.

    Attributes:
      number: local steps of each dispatch.
    """

    number: int


class Dispatch(NamedTuple):
    """One dispatch: the server sends a client the model and some work, once.

    `client_update` and `contribute` receive these facts as traced scalars. On the host they are
    NumPy arrays with leading axes, such as [rounds, cohort_size]. Floats have jax's default type.

    Attributes:
      client: int32[]: the client's id.
      number: int32[]: number of this dispatch of the client, from 0.
      server_step: int32[]: the server step whose broadcast the client starts from.
      num_steps: int32[]: local steps that the client does. Before a round it may be `EqualSteps`.
      full_steps: int32[]: local steps of a complete local update of this client.
      num_examples: int32[]: n_i.
      share: float[]: n_i / sum of n over ALL clients.
      learning_rate: float[]: the client learning rate of this local update.
      first_step: int32[]: local steps that the client did in all its earlier dispatches.
      arrives: bool[]: whether the update reaches the server. False if a client fails after its
        training, and in an empty slot, whose client is `num_clients`. `()` if all arrive.
    """

    client: Array
    number: Array
    server_step: Array
    num_steps: Any  # Array, or EqualSteps
    full_steps: Array
    num_examples: Array
    share: Array
    learning_rate: Array
    first_step: Array
    arrives: Array | tuple[()] = ()


def with_arrays(dispatches: Dispatch) -> Dispatch:
    """Returns dispatches [...] with `num_steps` as int32[...]."""
    if not isinstance(dispatches.num_steps, EqualSteps):
        return dispatches
    steps = np.full(jnp.shape(dispatches.client), dispatches.num_steps.number, np.int32)
    with jax.ensure_compile_time_eval():  # not a tracer, so that a loop knows its length
        return dispatches._replace(num_steps=jax.device_put(steps))


def blank_dispatches(*axes: int) -> Dispatch:
    """Returns dispatches of zeros with these axes, for functions that read only shapes."""
    whole, floats = np.zeros(axes, np.int32), np.zeros(axes, jnp.result_type(float))
    return Dispatch(*[*[whole] * 6, floats, floats, whole])


class Model(NamedTuple):
    """A model's trainable `params` and its other arrays.

    Attributes:
      params: a tree of float arrays.
      statistics: a tree of arrays that training changes without gradients, such as BatchNorm's
        means; `()` for none.
      frozen: a tree of arrays that never change, such as pretrained weights beside an adapter;
        `()` for none. Clients have them from the start, so they are never sent.
    """

    params: Params
    statistics: Statistics = ()
    frozen: Any = ()

    def __repr__(self) -> str:
        texts = {name: describe_tree(tree) for name, tree in self._asdict().items()}
        return describe(self, **{n: t for n, t in texts.items() if n == "params" or t != "nothing"})


class Mean(NamedTuple):
    """A metric as a sum and a weight, so that means over clients, chunks and devices add up.

    Attributes:
      total: float[]: the sum of weighted values; float[num_clients] from `make_evaluate_clients`,
        and float[batch] from a problem's `metrics`.
      weight: float[], as `total`: the sum of the weights, such as the number of examples.
    """

    total: jax.Array
    weight: Array

    def value(self) -> jax.Array:
        """Returns the mean, float[]; NaN if the weight is 0, as for a client without examples."""
        xp: Any = jnp if any(isinstance(each, jax.Array) for each in self) else np
        with np.errstate(over="ignore", invalid="ignore"):
            mean = self.total / xp.maximum(self.weight, 1e-30)
        return xp.where(self.weight > 0, mean, xp.nan)

    def over_classes(self) -> "Mean":
        """Returns the `Mean` itself, which has no axis of classes."""
        return self


class ClassMean(Mean):
    """A metric that averages the means of all classes, such as balanced accuracy.

    `value = (1 / |K|) sum over k in K of total_k / weight_k`, where K are the classes of positive
    weight. Totals and weights add up, so a sum over clients has the value of all their examples
    together, and not the mean of the clients' values.

    Attributes:
      total: float[..., classes]: the sum of weighted values per class.
      weight: float[..., classes]: the sum of the weights per class.
    """

    __slots__ = ()

    def value(self) -> jax.Array:
        """Returns the mean over the classes, float[]; NaN if all weights are 0."""
        return self.over_classes().value()

    def over_classes(self) -> Mean:
        """Returns the sum of the classes' means and the number of classes of positive weight."""
        present = self.weight > 0
        means = jnp.where(present, Mean(*self).value(), 0)
        return Mean(means.sum(-1), present.sum(-1).astype(means.dtype))


MetricValues: TypeAlias = Mapping[str, jax.Array | Mean]  # of a batch, with its leading axes


class Problem(NamedTuple):
    """A model and a loss, as pure functions.

    `loss` and `metrics` return one value for EACH example, because batches may be short: the engine
    masks the values and divides by the real count. A metric that is not a mean over examples
    returns a `Mean`: a mean over words has totals and weights float[batch], and a `ClassMean` has
    float[batch, classes]. In training, a dict batch also holds "mask", bool[batch], for layers that
    mix examples, such as BatchNorm. Masked rows repeat real ones.

    The arguments of `apply` are the model, a batch, a key for dropout or noise, and whether the
    model is being trained. It returns the outputs and the new statistics.

    Attributes:
      init: `key -> Model`, the initial model.
      apply: `(model, batch, key, training) -> (outputs, statistics)`, with leaves [batch, ...].
      loss: `(outputs, batch) -> float[batch]`.
      metrics: `(outputs, batch) -> {name: float[batch] or Mean}`; only called in evaluations.
    """

    init: Callable[[Key], Model]
    apply: Callable[[Model, Batch, Key, bool], tuple[Outputs, Statistics]]
    loss: Callable[[Outputs, Batch], jax.Array]
    metrics: Callable[[Outputs, Batch], MetricValues] = lambda outputs, batch: {}

    def shapes(self) -> Model:
        """Returns the shapes and dtypes of the initial model without computing it."""
        return jax.eval_shape(self.init, jax.eval_shape(jax.random.key, 0))

    def __repr__(self) -> str:
        params = "unknown"
        with contextlib.suppress(Exception):  # the user's function may fail, but a repr must not
            params = describe_tree(self.shapes().params)
        return describe(self, params=params)


class ReverseMode(NamedTuple):
    """Static bounds of a client's loops, so that `jax.grad` can go through local training.

    JAX differentiates loops in reverse mode only if their length is static. With bounds, each loop
    has its largest length. Surplus steps of a client are skipped, or computed and discarded in a
    mapped chunk. A client that exceeds a bound has NaN in all its results.

    Args:
      max_steps: the largest number of local steps of a dispatch.
      max_examples: the largest number of examples of a client, for gradients of all its examples.
      policy: what a local step keeps for the reverse pass, as in `jax.checkpoint`. None keeps its
        inputs only and computes the rest again; `jax.checkpoint_policies.everything_saveable`
        computes nothing again.
    """

    max_steps: int
    max_examples: int
    policy: Callable[..., bool] | None = None


class Local(NamedTuple):
    """Local work of a client: some steps `y <- y - learning_rate * transform(gradient)`.

    Give `steps` or `epochs`, not both. A fraction of an epoch is rounded up to whole steps.

    `batches` says how a local step takes its B = batch_size examples from a client's n:

    - "short": each epoch is a new order of the n examples, cut into ceil(n / B) batches. The last
      batch may be short.
    - "dropped": without the last batch if it is short, so floor(n / B) batches; needs n >= B.
    - "wrapped": the last batch is filled from the start of the same order.
    - "persistent": as "wrapped", but with floor(n / B) + 1 batches and at most 2 n examples in each
      batch, and the stream goes on where the last dispatch left it (the FedGBO paper's code).
    - "replacement": each example is drawn independently; an epoch is ceil(n / B) batches.
    - "poisson": each example is in a batch with probability B / n, independently of the others. A
      batch has ceil(B + 4.5 sqrt(B)) rows; if more examples come, a uniform choice of them stays.
      An epoch is ceil(n / B) batches.
    - "full": every step takes the gradient of all n examples, computed in pieces of B; an epoch is
      one step. Layers that mix examples, such as BatchNorm, see one piece at a time.

    Args:
      batch_size: B, examples of a local step; at least 1.
      learning_rate: the client learning rate, above 0: a number, or a function from int32[...] to
        floats of the same shape, such as a schedule of `participation.rate_schedules` or optax.
      steps: local steps of a complete local update; at least 1.
      epochs: the same as passes over the client's examples; above 0.
      transform: an optax transformation WITHOUT the learning rate (`optax.scale_by_adam()`, not
        `optax.adam(0.1)`), or one by name, `client_optimizer("adam:b1=0.9")`. Its state is
        initialised in every local update. It is applied after an algorithm's gradient correction,
        so `optax.chain(clip, add_decayed_weights)` acts where the papers apply it.
      batches: see above.
      rate_by: the argument of a `learning_rate` function: the number t of the server step
        ("round"), the number of the client's dispatch ("dispatch"), or t K + k for local step k,
        from 0, where K is the number of steps of a complete local update ("step"). With "step",
        the function is also traced, and a dispatch has the rate of its first step.
      reverse: bounds of the loops, so that rounds can be differentiated in reverse mode; see
        `differentiable`. None for loops of any length.
      gradient_accumulation: the number of pieces of a batch, a divisor of `batch_size`. Gradients
        of pieces are computed one after another, so memory holds the activations of one piece. The
        mean is the batch's gradient up to rounding. Layers that mix examples see one piece at a
        time, and dropout draws for each piece.
      example_noise: noise on the gradients, for differential privacy of examples; None for none.
    """

    batch_size: int
    learning_rate: float | Callable[[Any], Any]
    steps: int | None = None
    epochs: float | None = None
    transform: optax.GradientTransformation = optax.identity()
    batches: Batches = "short"
    rate_by: RateBy = "round"
    reverse: ReverseMode | None = None
    gradient_accumulation: int = 1
    example_noise: ExampleNoise | None = None

    def __repr__(self) -> str:
        defaults = self._field_defaults
        facts = {name: each for name, each in self._asdict().items() if each != defaults.get(name)}
        if "transform" in facts:
            facts["transform"] = "an optax transformation"
        if callable(self.learning_rate):
            facts["learning_rate"] = "a function"
        return describe(self, **facts)


class Report(NamedTuple):
    """The measurements of local training; an algorithm passes them on to the engine unchanged.

    Attributes:
      metrics: `Mean`s by name, such as `train_loss`, over all examples of all local steps.
      statistics: the model's statistics after the last local step.
    """

    metrics: Metrics
    statistics: Statistics


class WeightedSum(NamedTuple):
    """The default contribution: `weight * update` and `weight`, summed over the group.

    A server rule that receives it uses only the mean of the updates, so wrappers may multiply
    contributions by factors. A rule that needs the sum itself defines another type.

    Attributes:
      total: sum of w_i * update_i, a tree like one update.
      weight: float[]: sum of w_i.
    """

    total: Update
    weight: Array

    def mean(self) -> Update:
        """Returns the weighted mean of the group's updates, a tree like one update."""
        return jax.tree.map(lambda t: t / self.weight.astype(t.dtype), self.total)


class Stack(NamedTuple):
    """The updates that `server_update` receives instead of sums if `reduce` is "stack".

    Attributes:
      updates: leaves [group, ...]: one row per client.
      dispatches: leaves [group].
      mask: bool[group]: False for padding, and for updates that are lost or left out.
    """

    updates: Update
    dispatches: Dispatch
    mask: jax.Array
