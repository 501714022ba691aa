"""Toy problems and the one table of algorithms that every shared property runs over."""

import ast
import functools
import inspect
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import ClientData
from fedjax_algos.core.algorithm import stateless
from fedjax_algos.core.randomness import dispatch_keys, permutation_words
from fedjax_algos.models.outputs import Outputs
from fedjax_algos.participation import Cohorts

LAYOUTS = ["vmapped", 2, "sequential"]
ROOT = Path(__file__).parent.parent
WRITTEN = [".github", "docs", "experiments", "benchmarks"]  # folders with pages, beside the root
PAGES = [*ROOT.glob("*.md"), *(path for name in WRITTEN for path in (ROOT / name).rglob("*.md"))]
PAGES = sorted(str(path.relative_to(ROOT)) for path in PAGES)
MADE = re.compile(r"docs/claims(\.md|/)")  # pages that the site's build makes, which are not in git
PAGES = [page for page in PAGES if not MADE.match(page)]
FENCED = re.compile(r"^ *(`{3,})([^\n]*)\n(.*?)^ *\1 *$", re.DOTALL | re.MULTILINE)


def public_names(module):
    """The names that a module exports: `from ... import name as name`, or its `__all__`."""
    aliases = (
        each
        for node in ast.parse(inspect.getsource(module)).body
        for each in getattr(node, "names", ())
    )
    exported = [each.asname for each in aliases if each.asname]
    return getattr(module, "__all__", exported if hasattr(module, "__path__") else [])


@functools.cache
def _made_pages():
    from claim_files.pages import write_pages  # not in a copy without experiments

    folder = tempfile.TemporaryDirectory()
    write_pages(Path(folder.name))
    return folder


def page_at(path):
    """The file that a link leads to; for a page that the site's build makes, one made here."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if not MADE.match(name):
        return path
    return Path(_made_pages().name, name.removeprefix("docs/"))


def programs(page):
    """The blocks of Python on a page, without those for other libraries."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def written_files(page):
    """The files that cells of a notebook write, by name."""
    text, cell = (ROOT / page).read_text(), r"^%%writefile (\S+)\n(.*?)^```"
    return dict(re.findall(cell, text, re.DOTALL | re.MULTILINE))


class Case(NamedTuple):
    """A registered algorithm with settings."""

    name: str
    hyperparameters: dict[str, Any]

    def __str__(self):
        told = [
            f"{key}={value if isinstance(value, str | int | float) else 'own'}"
            for key, value in self.hyperparameters.items()
        ]
        return ",".join([self.name, *told])

    def build(self, problem, local):
        return algorithms[self.name](problem, local, **self.hyperparameters)


def _three_logits(outputs):
    return jnp.stack([outputs.logits, -outputs.logits, 0.5 * outputs.logits], -1)


def _signs(batch):
    return (batch["y"] > 0.8).astype(jnp.int32)


# of problems whose outputs are one number
CLASSES = {"logits": _three_logits, "labels": _signs}
OF_FEATURES = {"fedmax", "moon", "feddecorr", "fedntd", "fedlc", "feddisco"}
CASES = [
    Case("fedavg", {}),
    Case("fedavg", {"weighting": "uniform"}),
    Case("fedprox", {"mu": 0.5}),
    Case("fedavgm", {"beta": 0.9, "dampened": True}),
    Case("fedavgm", {"nesterov": True}),
    Case("fedadam", {"initial_v": 1.0, "weighting": "uniform"}),
    Case("fedyogi", {}),
    Case("fedadagrad", {}),
    Case("fedrmsprop", {}),
    Case("fedgbo", {"optimizer": "sgdm"}),
    Case("fedgbo", {"optimizer": "rmsprop", "upload": "gradient"}),
    Case("fedgbo", {"optimizer": "adam", "weighting": "examples", "server_learning_rate": 0.7}),
    Case("fedgbo", {"optimizer": optax.scale_by_adam(), "upload": "both"}),
    Case("fedmax", {"beta": 0.5}),
    *(Case("mfl", {"optimizer": optimizer}) for optimizer in ("sgdm", "adam")),
    *(Case("mimelite", {"optimizer": optimizer}) for optimizer in ("rmsprop", "adam")),
    Case("mimexlite", {"optimizer": "adam"}),
    Case("mimelitemom", {"server_learning_rate": 0.5}),
    Case("mime", {"weighting": "examples"}),
    Case("mimemom", {}),
    Case("scaffold", {}),
    Case("scaffold", {"weighting": "examples", "server_learning_rate": 0.7}),
    Case("feddyn", {"alpha": 0.1}),
    Case("adabest", {"mu": 0.02, "beta": 0.8}),
    Case("fednova", {}),
    Case("fednova", {"momentum": 0.5, "mu": 0.3, "server_learning_rate": 0.7}),
    Case("qfedavg", {"q": 2.0}),
    Case("fedcm", {"alpha": 0.3, "server_learning_rate": 0.7}),
    Case("ghbm", {"tau": 2}),
    Case("fedadc", {"weighting": "uniform"}),
    Case("localghbm", {"scale": "gap"}),
    Case("localghbm", {}),
    Case("fedhbm", {"first": "random"}),
    Case("fedhbm", {"beta": 0.7}),
    Case("fedlga", {"mode": "diag", "fallback": "max"}),
    Case("fedlga", {"mode": "update", "strength": 0.5}),
    Case("fedlga", {"clip": True}),
    Case("ditto", {"strength": 0.5}),
    Case("fedrep", {"head": "out*", "body_share": 0.4}),
    Case("apfl", {"alpha": 0.3, "weighting": "examples"}),
    Case("apfl", {"adaptive": False}),
    Case("pfedme", {"strength": 2.0, "personal_learning_rate": 0.1, "inner_steps": 2}),
    Case("ifca", {"weighting": "examples"}),
    Case("perfedavg", {"form": "hessian_free", "alpha": 0.1, "weighting": "examples"}),
    Case("perfedavg", {"alpha": 0.1}),
    Case("fedbn", {"norm": "hidden/b"}),
    Case("centralised", {}),
    Case("fedasync", {"form": "mixing"}),
    Case("fedasync", {"weighting": "uniform"}),
    Case("fedbuff", {"weighting": "buffer", "server_learning_rate": 0.7}),
    Case("fedat", {"mu": 0.3}),
    Case("fedsam", {"weighting": "examples", "server_learning_rate": 0.7}),
    Case("fedspeed", {"alpha": 0.9, "normalised": False}),
    Case("fedspeed", {"duals": "all"}),
    Case("fedlesam", {"server_learning_rate": 0.7}),
    *(Case("fedlesam", {"variant": variant}) for variant in ("scaffold", "feddyn")),
    Case("diloco", {"state": "fresh", "weighting": "examples"}),
    Case("diloco", {}),
    Case("fedadamw", {"moments": "entry", "server_learning_rate": 0.7}),
    Case("fedmuon", {"alpha": 0.3}),
    Case("moon", {"tau": 0.2, "weighting": "uniform"}),
    *(Case(name, CLASSES) for name in ("fedntd", "fedlc", "feddisco")),
    Case("fedexp", {"averaged": False, "weighting": "uniform"}),
    Case("fedacg", {"weighting": "examples"}),
    Case("fadas", {"debias": False}),
    *(Case(name, {"head": "out*"}) for name in ("fedper", "lgfedavg", "fedbabu")),
    Case("fedala", {"head": "out*", "first_passes": 2}),
    Case("fedcompass", {"variant": "momentum"}),
    Case("fedcompass", {"variant": "normalised", "weighting": "uniform"}),
]
# a new algorithm is tested as it comes; a line above adds settings
CASES += [Case(name, {}) for name in sorted(set(algorithms) - {case.name for case in CASES})]


def kind_of(case):
    """What the engine and wrappers treat differently in an algorithm, in one word."""
    algorithm = case.build(small_network().problem, fa.Local(2, 0.1, steps=2))
    traits = algorithm.traits
    kinds = {
        "pools": traits.pools_examples,
        "clock": traits.asynchrony.default != "barrier",
        "prelude": algorithm.prelude is not None,
        "stack": traits.reduce == "stack",
        "choice": "choice" in jax.tree.leaves(traits.parts),
        "personal": algorithm.personal is not None,
        "rows": algorithm.client_init is not stateless,
        "parts": len(jax.tree.leaves((traits.parts, traits.broadcast))) > 2,
    }
    return next((kind for kind, holds in kinds.items() if holds), "plain")


@functools.cache
def _first_cases():
    """The first case of each kind, and the first one of each algorithm."""
    of_kinds = {kind_of(case): number for number, case in reversed([*enumerate(CASES)])}
    of_names = {case.name: number for number, case in reversed([*enumerate(CASES)])}
    return {*of_kinds.values()}, {*of_names.values()}


def by_kind(cases=None, quick=True):
    """Cases as parameters: quick is one of each kind, `all` each algorithm once, nightly the rest.

    With `quick=False` none is quick.
    """
    of_kinds, of_names = _first_cases()
    parameters = []
    for case in CASES if cases is None else cases:
        number = CASES.index(case)
        mark = () if quick and number in of_kinds else pytest.mark.all
        mark = mark if number in of_kinds | of_names else pytest.mark.nightly
        parameters.append(pytest.param(case, marks=mark, id=str(case)))
    return parameters


class Toy(NamedTuple):
    """A problem with its clients' data; the examples also as NumPy lists, one for each client."""

    problem: fa.Problem
    data: fa.FederatedData
    clients: list[dict[str, np.ndarray]]


@functools.cache
def _quadratic(x0):
    return fa.Problem(
        init=lambda key: fa.Model({"x": jnp.asarray(x0, float)}),
        apply=lambda model, batch, key, training: (model.params["x"], ()),
        loss=lambda x, batch: 0.5 * batch["a"] * (x - batch["b"]) ** 2,
    )


def quadratics(a, b, x0=0.5):
    """Scalar model x; an example's loss is `a (x - b)^2 / 2`; a and b hold one list a client."""
    clients = [
        {"a": np.asarray(p, float), "b": np.asarray(q, float)} for p, q in zip(a, b, strict=True)
    ]
    return Toy(_quadratic(x0), stored(clients), clients)


def _network_init(key):
    first, second = jax.random.split(key)
    return fa.Model(
        {
            "hidden": {"w": jax.random.normal(first, (3, 4), float), "b": jnp.zeros(4)},
            "out": jax.random.normal(second, (4,), float),
        }
    )


def _network_apply(model, batch, key, training):
    del key, training
    hidden = jnp.tanh(batch["x"] @ model.params["hidden"]["w"] + model.params["hidden"]["b"][None])
    return Outputs(hidden @ model.params["out"], hidden), ()


def _network_loss(outputs, batch):
    return (outputs.logits - batch["y"]) ** 2


def small_network():
    """A smooth two-layer network on four clients with 5, 1, 8 and 3 examples.

    Its functions are the same in each call, so that its initialisation is compiled once.
    """
    rng = np.random.default_rng(0)
    counts = [5, 1, 8, 3]
    clients = [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in counts]
    problem = fa.Problem(_network_init, _network_apply, _network_loss)
    return Toy(problem, stored(clients), clients)


def stored(clients):
    """The clients' examples in the flat store, shuffled, so that a view must use its indices."""
    counts = [len(next(iter(client.values()))) for client in clients]
    order = np.random.default_rng(1).permutation(sum(counts))
    examples = {k: np.concatenate([c[k] for c in clients])[order] for k in clients[0]}
    rows = np.split(np.argsort(order), np.cumsum(counts)[:-1])
    return fa.federate(examples, fa.Partition.of(rows))


def one_round(dispatches, index):
    """The dispatches of one round out of several."""
    return jax.tree.map(lambda leaf: leaf[index], dispatches)


def fixed(sets):
    """A sampler that gives these cohorts, one a round."""
    return lambda seed, rounds, num_clients, cohort_size: np.asarray(sets, np.int32)[rounds]


def dispatches_of(data, local, sets, steps=None, seed=0):
    """The dispatches of fixed cohorts, one a round; `steps` has those of each client."""
    sampler, size = fixed(sets), len(sets[0])
    cohorts = Cohorts(data.counts(), local, cohort_size=size, seed=seed, sampler=sampler)
    dispatches = cohorts.dispatches(len(sets))
    if steps is None:
        return dispatches
    return dispatches._replace(num_steps=np.asarray(steps, np.int32)[dispatches.client])


def run(algorithm, data, sets, *, layout="vmapped", seed=0, num_steps=None, params=None):
    """The global params after each round over fixed cohorts; `num_steps` has one for each client.

    It is one program, a scan of pure rounds.
    """
    dispatches = dispatches_of(data, algorithm.local, sets, num_steps, seed)
    population = fa.Population(data.num_clients, len(sets[0]), int(data.counts().sum()))
    round_fn = fa.pure_round(algorithm, layout)

    @jax.jit
    def scanned(params, data, dispatches):
        def step(state, of_round):
            state, _ = round_fn(state, data, of_round)
            return state, state.server.params

        start = round_fn.init(seed, population, params)
        return jax.lax.scan(step, start, dispatches)[1]

    history = jax.tree.map(np.asarray, scanned(params, data, dispatches))
    return [one_round(history, index) for index in range(len(sets))]


@functools.partial(jax.jit, static_argnames="batch_size")
def _positions(seed, client, dispatch, count, step, batch_size):
    order, _ = dispatch_keys(seed, client, dispatch)
    words = permutation_words(order)
    data = ClientData((), jnp.zeros(0), jnp.int32(0), count, words, ())
    return data.positions(step, batch_size)


def positions(seed, client, dispatch, count, step, batch_size):
    """The examples of one local step as plain NumPy: the real ones of `ClientData.positions`."""
    where, real = _positions(seed, client, dispatch, count, step, batch_size)
    return np.asarray(where)[np.asarray(real)]


class ReadError(AssertionError):
    """A device array was read on the host: see the fixture `unreadable`."""


class Compilations:
    """Counts what XLA compiles while it is entered."""

    def __enter__(self):
        self.names: list[str] = []
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def _listen(self, event, duration, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            self.names.append(details["fun_name"])

    @property
    def count(self):
        return len(self.names)

    def __exit__(self, *exception):
        jax.monitoring.unregister_event_duration_listener(self._listen)


@functools.cache
def with_statistics(problem):
    """The network, whose model keeps the running mean of what it sees and subtracts it."""

    def init(key):
        return fa.Model(problem.init(key).params, {"mean": jnp.zeros(3)})

    def apply(model, batch, key, training):
        shifted = batch | {"x": batch["x"] - model.statistics["mean"][None]}
        moved = 0.9 * model.statistics["mean"] + 0.1 * batch["x"].mean(0)
        return problem.apply(model, shifted, key, training)[0], {"mean": moved}

    return problem._replace(init=init, apply=apply)


def unused_params():
    """Params that nothing reads, of the names in the patterns of `CASES`."""
    return {"hidden": {"b": jnp.zeros(2)}, "out": jnp.zeros(())}


def with_unused(problem):
    """The problem with `unused_params`."""

    def init(key):
        return fa.Model(problem.init(key).params | unused_params())

    return problem._replace(init=init)
