"""The settings that all commands share; they make the data, the problem and the local work."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

import fedjax_algos as fa
from fedjax_algos.analysis.rows import check_evaluations, within_budget
from fedjax_algos.analysis.statistics import check_target_metric, metric_column
from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import MAX_INT32, check_memory
from fedjax_algos.core.options import (
    Batches,
    Count,
    NonFinite,
    NonNegative,
    Positive,
    PositiveShare,
    Proportion,
    Range,
    RateBy,
    check_choice,
    check_value,
    options,
)
from fedjax_algos.core.specs import parse_seeds, parse_value, split_wrappers

# settings that the virtual clock refuses
_IN_ROUNDS = (
    "client_state", "examples", "evaluate_clients_at", "budget", "local_epochs", "failures",
)  # fmt: skip
_INSTEAD = {  # what to give in place of a refused setting
    ("failures", "the virtual clock"): "give a system with losses, such as simulated:dropout=0.3",
    ("local_epochs", "the virtual clock"): "give local_steps",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one experiment.

    `dataset`, `model`, `partition`, `sampler`, `work`, `rate_schedule` and `system` are names in
    registries and may carry options, as in `dirichlet:alpha=0.3`. `clients` and `rounds` are
    counts; each of the `seeds` is one run, evaluated every `eval_every` rounds. For `batch_size`,
    `batches`, `gradient_accumulation` and `rate_by` see `Local`; for `client_state` and
    `non_finite` see `make_engine`, with a folder beside the results for "disk". The other fields:

    - `loss` replaces the model's loss in training and evaluation.
    - `metrics` are measured besides the model's metrics; see `with_metrics`.
    - `compute_dtype`: models are applied in the dtype of their params, or in bfloat16; see
      `compute_in`. `rematerialise`: gradients need less memory and more time; see `rematerialise`.
    - `shift` changes the inputs of each client in its own way, as `noise:level=0.5`; the common
      test examples are not shifted, and a client's held-out examples are.
    - `cohort` is a number of clients or, below 1, a fraction of them; None is 10, or the slots that
      the sampler `poisson` needs.
    - `failures` says which clients train and then do not answer, as `independent:probability=0.3`;
      None: all answer. On the virtual clock the `system` says which dispatches are lost. In rounds
      the `system` is used by the failures `late`, the sampler `in_session` and the wrapper `oort`.
    - `local_steps` is 10 if neither it nor `local_epochs` is given.
    - `client_learning_rate`, `client_optimizer` (see the function of this name) and
      `server_learning_rate` replace the values of all methods.
    - `wrap` names wrappers of all methods, outside the methods' own; see `fa.wrappers.wrap`.
    - `rate_schedule` changes the client learning rate, by rounds or by a client's own dispatches.
    - Clients clip their gradients to the norm `clip_norm` and then add `weight_decay` times the
      params, after the algorithm's correction and before the `client_optimizer`; 0 switches either
      off.
    - `target` is the quality whose cost is measured; None: the reference's best quality. Methods
      are compared and tuned on the `target_metric` on test examples: the accuracy, or one of the
      `metrics` that is higher for better models, such as "dice_score".
    - `budget`, such as `upload_bytes=5e5`: a run in rounds ends at an evaluation once it has cost
      as much, and methods are compared at their last evaluations within the budget.
    - `reference` is the label of the method to compare the others with; None: the first.
    - `test_examples`: if the data set has more test examples, this many are drawn for evaluation.
    - `evaluate_clients`: at the end of a run each client's own model is evaluated on the client's
      "train" examples, or on the share `held_out` of them, which is then not trained on. Before
      that, each client may train its model for `personal_steps` local steps. If
      `evaluate_clients_at` is "evaluations", each evaluation of a run in rounds does the same, and
      the columns of `CLIENT_COLUMNS`, which may be the `target_metric`, have the distribution.
    - `seconds`: run on the virtual clock for this many simulated seconds, each method on its own
      planner, in the same `system`, with `evaluations` evaluations. All clients take part, and
      `cohort`, `sampler`, `work`, `rounds`, `eval_every` and `layout` have no effect;
      `local_epochs`, `client_state` "host" and "disk", and sharded `examples` are refused.
      `local_steps` is then the work in planners that do not choose it.
    - `layout` "auto" is sequential on a CPU. On an accelerator it depends on the memory that the
      most demanding method of a comparison needs; see `make_engine`.
    - `devices`: the number of devices that share a cohort, a wave or the runs of a sweep. None is
      one device in rounds and on the virtual clock, because the rounding depends on the number, and
      all devices in a sweep (CPU devices up to the number of cores).
    - `devices_per_client`: how many of them compute a client together, each with a part of its
      model; not in sweeps and tuning.
    - `examples` are replicated on all devices, or sharded: each client's examples on one device.
    """

    dataset: str = "digits"
    model: str = "mlp"
    loss: str | None = None
    metrics: str | None = None
    compute_dtype: Literal["params", "bfloat16"] = "params"
    rematerialise: bool = False
    partition: str = "dirichlet:alpha=0.1"
    shift: str | None = None
    clients: Count = 100
    cohort: Positive | None = None
    sampler: str = "uniform"
    failures: str | None = None
    work: str = "full"
    rounds: Count = 100
    local_steps: Count | None = None
    local_epochs: Positive | None = None
    batch_size: Count = 10
    batches: Batches = "short"
    gradient_accumulation: Count = 1
    client_learning_rate: Positive | None = None
    client_optimizer: str | None = None
    wrap: str | None = None
    rate_schedule: str = "constant"
    rate_by: RateBy = "round"
    weight_decay: NonNegative = 0.0
    clip_norm: NonNegative = 0.0
    server_learning_rate: Positive | None = None
    seeds: tuple[int, ...] = (0,)
    eval_every: Count = 5
    target: PositiveShare | None = None
    target_metric: str = "accuracy"
    budget: str | None = None
    reference: str | None = None
    test_examples: Count | None = None
    evaluate_clients: Literal["none", "train", "held_out"] = "none"
    evaluate_clients_at: Literal["end", "evaluations"] = "end"
    held_out: Proportion = 0.2
    personal_steps: Annotated[int, Range(0, MAX_INT32)] = 0
    seconds: Positive | None = None
    system: str = "simulated"
    evaluations: Count = 20
    layout: str = "auto"
    devices: Count | None = None
    devices_per_client: Count = 1
    client_state: Literal["device", "host", "disk"] = "device"
    examples: Literal["replicated", "sharded"] = "replicated"
    non_finite: NonFinite = "exclude"

    def check(self) -> None:
        """Raises ValueError for a wrong value, or values that contradict each other."""
        from fedjax_algos.runs.loops.run import Rounds

        for option in options(Settings).values():
            check_value(option, getattr(self, option.name), "")
        fa.data.datasets.parse(self.dataset)
        fa.models.models.parse(self.model)
        fa.data.partitions.parse(self.partition)
        if self.shift is not None:
            fa.data.shifts.parse(self.shift)
        self._sampler()
        self._failures()
        fa.participation.local_works.make(self.work)
        self.local(1.0)
        self.system_model()
        fa.models.losses.parse(self.loss or "cross_entropy")
        fa.models.metrics.parse_all(self.metrics or "accuracy")
        check_target_metric(self.target_metric)
        at_evaluations = self.evaluate_clients_at == "evaluations"
        if metric_column(self.target_metric) == self.target_metric:  # a column of the clients
            columns = fa.analysis.evaluation.CLIENT_COLUMNS.values()
            check_choice("target_metric", self.target_metric, columns)
            fix = "give evaluate_clients as well, and evaluate_clients_at='evaluations'"
            require(at_evaluations, f"target_metric={self.target_metric!r} is not measured; {fix}")
        for spec in [] if self.wrap is None else split_wrappers(self.wrap) or [""]:
            fa.wrappers.wrappers.parse(spec)
        within_budget([], self.budget)  # checks it
        num_seeds = len(self.seeds)  # each has a partition, and each client an index and an offset
        what, size = f"{num_seeds} seeds of clients={self.clients}", num_seeds * self.clients * 8
        check_memory(what, size, "give fewer seeds or clients")
        if self.seconds is not None:
            refuse(self, "the virtual clock", *_IN_ROUNDS)
            check_evaluations(num_seeds * self.evaluations, "give fewer evaluations or seeds")
        else:
            Rounds(1, self.rounds, eval_every=self.eval_every).check(num_seeds)
            # all rounds are drawn before the first one, so that errors appear early
            drawn, fix = (self.rounds, self.cohort_size), "give fewer rounds or clients"
            fa.participation.cohorts.check_dispatch_memory(*drawn, fix)
        for seed in self.seeds:
            fa.core.checks.check_whole("seed", seed, 0)
        if not self.seeds or len(set(self.seeds)) < num_seeds:
            fix = f"give different numbers from 0 to {MAX_INT32}"
            raise ValueError(f"seeds={self.seeds} is out of range; {fix}")
        if at_evaluations and self.evaluate_clients == "none":
            fix = "give evaluate_clients='train' or 'held_out'"
            raise ValueError(f"evaluate_clients_at='evaluations' has no examples; {fix}")
        fa.engine.slots.chunk_size(self.layout, 1)

    @property
    def cohort_size(self) -> int:
        """Returns the number of clients in a round, or of the slots for them."""
        slots = getattr(self._sampler(), "slots", None)
        if self.cohort is None and slots is not None:
            return min(slots, self.clients)
        return fa.participation.cohort_count(self.cohort or 10, self.clients)

    @property
    def in_system(self) -> bool:
        """Returns whether the `system` has an effect."""
        part, wrappers = fa.participation, fa.wrappers.wrappers
        specs: list[Any] = [(part.samplers, self.sampler), (part.failures, self.failures)]
        specs += [(wrappers, spec) for spec in split_wrappers(self.wrap or "")]
        in_rounds = any(part.in_rounds.reads_system(*each) for each in specs if each[1] is not None)
        return self.seconds is not None or in_rounds

    def _sampler(self) -> fa.participation.Sampler:
        part = fa.participation
        return part.in_rounds.make_in_system(part.samplers, self.sampler, self.system_model())

    def _failures(self) -> fa.participation.Failures | None:
        part, spec, system = fa.participation, self.failures, self.system_model()
        make = part.in_rounds.make_in_system
        return None if spec is None else make(part.failures, spec, system)

    def system_model(self) -> fa.asynchrony.SystemModelFactory:
        """Returns the function that makes the system model of a seed."""
        return fa.asynchrony.system_of(self.system, self.batch_size)

    def cohorts(self) -> dict[str, Any]:
        """Returns the arguments of `Cohorts` for the cohorts and their local work."""
        return {
            "cohort_size": self.cohort_size,
            "sampler": self._sampler(),
            "work": fa.participation.local_works.make(self.work),
            "failures": self._failures(),
        }

    def sampling(self) -> fa.wrappers.Sampling:
        """Returns how the cohorts of rounds are drawn."""
        drawn = self._sampler(), self.clients, self.cohort_size, self.rounds
        return fa.wrappers.Sampling(*drawn)

    def loop(self) -> dict[str, Any]:
        """Returns the arguments of `simulate` and `run_batched` for the rounds."""
        return {**self.cohorts(), "rounds": self.rounds, "eval_every": self.eval_every}

    @property
    def steps(self) -> int | None:
        """Returns the local steps of a complete local update; None if epochs are counted."""
        return self.local_steps or (10 if self.local_epochs is None else None)

    def local(
        self, client_learning_rate: float, client_optimizer: str | None = None
    ) -> fa.core.Local:
        """Makes a client's local work.

        Args:
          client_learning_rate: the rate that `rate_schedule` starts from.
          client_optimizer: the optimiser of a method; None: the settings' optimiser.
        """
        rate = fa.participation.rate_schedules.make(self.rate_schedule, client_learning_rate)
        optimizer = client_optimizer or self.client_optimizer or fa.core.optimizers.PLAIN
        transform = fa.core.optimizers.local_transform(optimizer, self.clip_norm, self.weight_decay)
        work = self.batch_size, rate, self.steps, self.local_epochs, transform
        accumulation = self.gradient_accumulation
        return fa.core.Local(*work, self.batches, self.rate_by, gradient_accumulation=accumulation)

    def problem(self, dataset: fa.data.AnyDataset) -> fa.core.Problem:
        """Makes the problem; raises ValueError if the model does not take a data set's examples.

        Args:
          dataset: gives the shape and type of an example, and the number of classes.
        """
        models = fa.models
        name, _ = models.models.parse(self.model)
        num_classes: Any = dataset.num_classes  # None is for the user's models
        if num_classes is None and ":" not in name:
            found = f"model={self.model!r} is for classes, and {self.dataset!r} has none"
            fix = "give a custom model, FILE.py:NAME, or give the ClientDataset its num_classes"
            raise ValueError(f"{found}; {fix}")
        models.adapters.check_examples(name, dataset.example_shape, dataset.example_dtype)
        problem = models.models.make(self.model, dataset.example_shape, num_classes)
        problem = problem if self.loss is None else models.with_loss(problem, self.loss)
        problem = problem if self.metrics is None else models.with_metrics(problem, self.metrics)
        if self.compute_dtype != "params":
            problem = models.compute_in(problem, self.compute_dtype)
        return models.rematerialise(problem) if self.rematerialise else problem

    def load(self) -> fa.data.AnyDataset:
        """Reads the data set; if clients' examples are in files, only opens them."""
        return fa.data.federated_data.as_dataset(fa.data.datasets.make(self.dataset))


def parse_setting(name: str, given: Any) -> Any:
    """Parses and checks a setting, given as a text or as a value from a file."""
    if name == "seeds":
        return parse_seeds(given)
    value = parse_value(options(Settings)[name], given)
    is_count = name == "cohort" and "." not in str(given)  # 1.0 stays a float, and is refused
    return int(value) if is_count and value.is_integer() else value


def refuse(settings: Settings, what: str, *names: str) -> None:
    """Raises ValueError if one of these settings differs from its default."""
    for name in names:
        default, value = options(Settings)[name].default, getattr(settings, name)
        if value != default:
            fix = "leave it out" if default is None else f"give {name}={default!r}"
            fix = _INSTEAD.get((name, what), fix)
            raise ValueError(f"{name}={value!r} is not for {what}; {fix}")


class Split(NamedTuple):
    """One seed's examples by client.

    Attributes:
      train: the training examples, without held-out ones.
      partition: their partition; None for examples in files.
      held_out: the held-out examples of each client; None if the settings hold out none.
    """

    train: fa.data.FederatedData | fa.data.StoredData
    partition: fa.data.Partition | None = None
    held_out: fa.data.FederatedData | None = None


def split(settings: Settings, dataset: fa.data.AnyDataset, seed: int) -> Split:
    """Divides the training examples of a data set among the clients."""
    clients, (name, options) = settings.clients, fa.data.partitions.parse(settings.partition)
    if isinstance(dataset, fa.data.ClientDataset):
        text = "is for examples in memory; leave it out, or give another data set"
        require(settings.shift is None, f"shift={settings.shift!r} {text}")
        store, choose = dataset.train, fa.data.partitioning.simple.choose_clients
        return Split(fa.data.StoredData(store, choose(store.counts, clients, seed, **options)))
    source = dataset.users if name == "natural" else np.asarray(dataset.train["y"])
    if source is None:
        needed = f"partition={settings.partition!r} needs a data set with its own clients"
        raise ValueError(f"{needed}, which {settings.dataset!r} is not; choose another partition")
    partition = fa.data.partitions.make(settings.partition, source, clients, seed)
    if (number := partition.num_clients) != clients:
        found = f"partition={settings.partition!r} has {number} clients, not clients={clients}"
        raise ValueError(f"{found}; return {clients}, or give clients={number}")
    train = dataset.train
    if settings.shift is not None:
        inputs = np.asarray(train["x"])
        train = train | {"x": fa.data.shifts.make(settings.shift, inputs, partition, seed)}
    if settings.evaluate_clients != "held_out":
        return Split(fa.data.federate(train, partition), partition)
    partition, held_out = fa.data.hold_out(partition, settings.held_out, seed)
    if not held_out.indices.size:
        found = f"held_out={settings.held_out:g} of the examples of each client is less than one"
        raise ValueError(f"{found}; give a larger share, or fewer clients than {clients}")
    tested = fa.data.federate(train, held_out, allow_empty=True)
    return Split(fa.data.federate(train, partition), partition, tested)
