"""A synchronous run as an iterator: windows of rounds, each followed by an evaluation."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import jax

from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.analysis.rows import metrics_row
from fedjax_algos.core import Batch, Metrics, Model, Params, Population, Problem, Row
from fedjax_algos.core.checks import check_callable, check_kind, check_not_consumed, check_whole
from fedjax_algos.engine.checks import StateCheck
from fedjax_algos.engine.engine import Engine
from fedjax_algos.engine.placed.cohort_data import CohortData
from fedjax_algos.engine.placed.devices import one_copy
from fedjax_algos.engine.placed.sharded_data import RunData
from fedjax_algos.engine.state import FederatedState, place_of
from fedjax_algos.runs.divergence import (
    count_excluded,
    has_diverged,
    params_finite,
    training_mean,
    warn_of_divergence,
)
from fedjax_algos.runs.inputs import check_data, check_room_for_rows, check_rounds
from fedjax_algos.runs.windows import draw_windows, flop_counter
from fedjax_algos.schedules import LocalWork, Sampler, Synchronous, uniform
from fedjax_algos.schedules.synchronous import Position


class Rounds:
    """The run of `simulate` and of `iterate_rounds`, which document the arguments.

    An iteration runs the rounds until the next evaluation. `state`, `rows`, `done` and `flops` are
    those of the last evaluation; `position` is that of the schedule then, or None before the first
    round.
    """

    def __init__(
        self,
        engine: Engine,
        data: RunData,
        *,
        cohort_size: int,
        rounds: int,
        seed: int = 0,
        sampler: Sampler = uniform,
        work: LocalWork | None = None,
        test: Batch | None = None,
        eval_every: int = 1,
        params: Params | Model | None = None,
        evaluate: Callable | None = None,
        state: FederatedState | None = None,
        start_round: int | None = None,
    ):
        check_kind("engine", engine, Engine, "give make_engine(algorithm)")
        check_rounds(rounds, eval_every)
        _check_start(state, start_round, params, seed)
        check_data(engine.algorithm.problem, data, test)
        self.engine, self.seed = engine, seed
        self.cohort_size, self.rounds, self.eval_every = cohort_size, rounds, eval_every
        counts, self.data = data.counts(), engine.put_data(data)
        self.draw = partial(
            Synchronous,
            counts,
            engine.algorithm.local,
            cohort_size=cohort_size,
            seed=seed,
            sampler=sampler,
            work=work,
        )
        self.schedule = self.draw()
        population = Population(data.num_clients, cohort_size, int(counts.sum()))
        if state is None:
            state = engine.init(seed, population, params)
        else:
            place = place_of(state.clients)
            StateCheck(engine.algorithm, place).check_state(state, self.data)
        self.state, self.start_round = state, start_round or 0
        self.done, self.end = self.start_round, self.start_round + rounds
        check_room_for_rows(state, min(data.num_clients, self.end * cohort_size))
        self.evaluate_model = make_evaluate_model(engine.algorithm.problem, test, evaluate)
        self.count = flop_counter(engine.algorithm, state, self.data)
        self.test, self.flops, self.diverged = test, 0.0, False
        self.rows: list[Row] = []
        self.position: Position | None = None
        self.started = time.perf_counter()
        if isinstance(self.data, CohortData):
            self.data.reserve(self._cohorts())
        if self.start_round:  # what earlier rounds drew is drawn again
            self.flops = sum(window.flops for window in self._windows(self.start_round))

    def _windows(self, end):
        keeping = bool(jax.tree.leaves(self.state.origin))
        return draw_windows(self.schedule, self.count, end, self.eval_every, keeping)

    def _cohorts(self):
        """The clients of each round, drawn beside the schedule."""
        schedule = self.draw()
        for done in range(0, self.end, self.eval_every):
            yield from schedule.dispatches(min(self.eval_every, self.end - done)).client

    def __iter__(self) -> Iterator[tuple[FederatedState, Row]]:
        windows = self._windows(self.end)
        window = next(windows, None)
        if window is not None:  # else a checkpoint was that of the end
            first = jax.tree.map(lambda leaf: leaf[0], window.dispatches)
            self.transfer = self.engine.transfer(self.state, self.data, first)
        if not self.rows:
            yield self.state, self._measured({})
        while window is not None and not self.diverged:
            self.position = window.position
            self.state, metrics = self.engine.rounds(
                self.state, self.data, window.dispatches, window.rounds
            )
            self.done, self.flops = self.done + window.rounds, self.flops + window.flops
            window = next(windows, None)  # while the devices compute, for which the row waits
            if window is not None and isinstance(self.data, CohortData):
                self.data.read_ahead(window.dispatches.client[0])
            yield self.state, self._measured(metrics)
        if self.diverged:
            warn_of_divergence({f"seed {self.seed}": self.rows})

    def _measured(self, metrics: Metrics) -> Row:
        """The row of an evaluation of the state."""
        measured = {name: float(training_mean(mean)) for name, mean in metrics.items()}
        dispatched = self.done * self.cohort_size
        row = metrics_row(
            self.done,
            measured | self.evaluate_model(self.state),
            excluded_updates=count_excluded(self.state.excluded),
            download_bytes=dispatched * self.transfer.download,
            upload_bytes=dispatched * self.transfer.upload,
            flops=self.flops,
            wall_seconds=time.perf_counter() - self.started,
        )
        finite = params_finite(self.state.server.params)
        self.diverged = has_diverged(self.engine.non_finite, row, finite)
        self.rows.append(row)
        return row

    @property
    def ended(self) -> bool:
        """Whether there is no further round."""
        return self.done == self.end or self.diverged


def iterate_rounds(
    engine: Engine,
    data: RunData,
    *,
    cohort_size: int,
    rounds: int,
    seed: int = 0,
    sampler: Sampler = uniform,
    work: LocalWork | None = None,
    test: Batch | None = None,
    eval_every: int = 1,
    params: Params | Model | None = None,
    evaluate: Callable | None = None,
    state: FederatedState | None = None,
    start_round: int | None = None,
) -> Iterator[tuple[FederatedState, Row]]:
    """The evaluations of `simulate` one by one, as `for state, row in iterate_rounds(...)`.

    The first pair is that of the start. Each next one runs `eval_every` rounds in one compiled
    call, in which it CONSUMES the state that was yielded before: copy that state to keep it, with
    `jax.tree.map(jnp.copy, state)`. Leave the loop to end the run.

    Args:
      engine: as in `simulate`, like all arguments.
      data: the clients' examples.
      cohort_size: M, the number of clients in a round.
      rounds: the number of rounds that are run, at most.
      seed: of the model, the cohorts and the clients' batches.
      sampler: draws the cohorts.
      work: how much of its local work each client does.
      test: the examples to evaluate on, or None for no evaluation.
      eval_every: rounds of one iteration.
      params: replace the problem's own initialisation.
      evaluate: of `make_evaluate`.
      state: of an earlier run, which goes on; it is CONSUMED.
      start_round: the number of rounds that `state` has seen.

    Returns:
      An iterator over the states and the rows of the evaluations.

    Raises:
      TypeError: for an object of another type.
      ValueError: as `simulate` does.
      NonFiniteUpdateError: for an update that is not finite if the engine has non_finite="error".
    """
    return iter(
        Rounds(
            engine,
            data,
            cohort_size=cohort_size,
            rounds=rounds,
            seed=seed,
            sampler=sampler,
            work=work,
            test=test,
            eval_every=eval_every,
            params=params,
            evaluate=evaluate,
            state=state,
            start_round=start_round,
        )
    )


def _check_start(state, start_round, params, seed):
    """Raises an error for a state of an earlier run that does not fit the other arguments."""
    if start_round is not None:
        check_whole("start_round", start_round, 0)
    if state is None:
        if start_round:
            raise ValueError(
                f"start_round={start_round} has no state; give the state after so many rounds"
            )
        return
    fix = "give what engine.init, simulate or the last round returned"
    check_kind("state", state, FederatedState, fix)
    check_not_consumed(state)
    if start_round is None:
        raise ValueError(
            "state has no start_round, which says what its next cohorts and batches are; give the "
            "number of rounds that the state has seen, 0 for one of engine.init"
        )
    if params is not None:
        raise ValueError("state and params are both given; give params where the run begins")
    own = int(one_copy(state.seed))
    if own != seed:
        raise ValueError(f"seed={seed} is not that of the state; give seed={own}")


def make_evaluate_model(
    problem: Problem, test: Batch | None, evaluate: Callable | None
) -> Callable[[FederatedState], dict[str, float]]:
    """Builds `state -> {"test_loss": ..., ...}`, the columns of a state's evaluation.

    Args:
      problem: what is learned.
      test: the examples to evaluate on; None: there are no such columns.
      evaluate: of `make_evaluate`, or None to make one.
    """
    if evaluate is not None:
        check_callable("evaluate", evaluate, "give make_evaluate(problem)")
    if test is None:
        return lambda state: {}
    compiled, examples = evaluate or make_evaluate(problem), jax.device_put(test)

    def evaluate_model(state: FederatedState) -> dict[str, float]:
        values = compiled(one_copy(state.model), examples)
        return {f"test_{name}": float(mean.value()) for name, mean in values.items()}

    return evaluate_model
