"""Options, costs and source of algorithms and codecs, for their pages."""

import ast
import functools
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import Problem
from fedjax_algos.core.options import Option, options
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.data import FederatedData
from fedjax_algos.participation import Cohorts
from fedjax_algos.wrappers import codecs

FACTORIES = {**algorithms, **codecs}
EXAMPLES, STEPS, BATCH_SIZE = 100, 10, 10  # of a client
REQUIRED: dict[str, dict[str, Any]] = {
    "ghbm": {"tau": 10},
    **{name: {"head": "Dense_1/*"} for name in ("fedrep", "fedper", "lgfedavg", "fedbabu")},
    "fedbn": {"norm": "Dense_0/*"},
}


class Costs(NamedTuple):
    """The costs of a client in a round, in bytes and floating-point operations."""

    download: int
    upload: int
    kept: int
    server: int
    memory: int
    flops: float


@functools.cache
def task() -> tuple[Problem, FederatedData]:
    """A perceptron with 64 hidden units on images of 64 pixels, and three equal clients."""
    number = 3 * EXAMPLES
    examples = {"x": np.zeros((number, 64), np.float32), "y": np.zeros(number, np.int32)}
    partition = fa.Partition.of(np.array_split(np.arange(number), 3))
    return fa.models.mlp((64,), 10), fa.federate(examples, partition)


@functools.cache
def costs(name: str) -> Costs:
    """The costs of an algorithm on the task."""
    problem, data = task()
    local = fa.Local(BATCH_SIZE, 0.1, steps=STEPS)
    algorithm = algorithms[name](problem, local, **REQUIRED.get(name, {}))
    engine = fa.make_engine(algorithm)
    population = fa.Population(data.num_clients, 1, 3 * EXAMPLES)
    state = jax.eval_shape(functools.partial(engine.init, 0, population))._replace(seed=0)
    rounds = Cohorts(data.counts(), local, cohort_size=1, seed=0).dispatches(1)
    dispatches = jax.tree.map(lambda leaf: leaf[0], rounds)
    sent = engine.transfer(state, data, dispatches)
    both = sent.download, sent.upload
    memory = fa.count_memory(algorithm, state, data)
    model = tree_bytes(jax.eval_shape(problem.init, jax.random.key(0)))
    server = tree_bytes(state.server) - model
    flops = fa.count_flops(algorithm, state, data).of(dispatches)[0]
    return Costs(*both, memory.between_rounds, server, memory.in_training, flops)


def meanings(name: str) -> dict[str, str]:
    """The text of each argument in a factory's docstring."""
    docstring = inspect.getdoc(FACTORIES[name]) or ""
    arguments = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    entries = re.split(r"^  (?=\w+: )", arguments[1] if arguments else "", flags=re.MULTILINE)
    pairs = (entry.partition(": ") for entry in entries if entry)
    return {key: " ".join(text.split()) for key, _, text in pairs}


def values_of(option: Option) -> str:
    """Describes the values of an option."""
    if option.choices:
        return " or ".join(f"`{choice}`" for choice in option.choices)
    if option.kind in (int, float):
        kind = "a whole number" if option.kind is int else "a number"
        return kind + str(option.range or "a number").removeprefix("a number")
    return {bool: "`True` or `False`", str: "a text"}.get(option.kind, "an object of Python")


def options_table(name: str) -> str:
    """The options as a table in Markdown."""
    texts = meanings(name)
    lines = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for option in options(FACTORIES[name]).values():
        default = getattr(option.default, "__name__", repr(option.default))  # of a function
        default = "must be given" if option.required else f"`{default}`"
        text = texts.get(option.name, "").replace("|", "\\|")
        lines.append(f"| `{option.name}` | {values_of(option)} | {default} | {text} |")
    if len(lines) == 2:
        return "It has no options of its own."
    return "\n".join(lines)


def costs_table(name: str) -> str:
    """The costs as a table in Markdown."""
    own, plain = costs(name), costs("fedavg")
    given = ", ".join(f"`{key}={value!r}`" for key, value in REQUIRED.get(name, {}).items())
    rows = {
        "download, bytes": "download",
        "upload, bytes": "upload",
        "kept between rounds, bytes": "kept",
        "changed and read by local training, bytes": "memory",
        "floating-point operations of a local update": "flops",
        "the server keeps beside the model, bytes": "server",
    }
    lines = ["| of a client in a round | here | FedAvg | ratio |", "|---|---|---|---|"]
    for text, field in rows.items():
        mine, base = getattr(own, field), getattr(plain, field)
        ratio = f"{mine / base:.2f}" if base else ""
        lines.append(f"| {text} | {mine:,.0f} | {base:,.0f} | {ratio} |")
    with_options = f" with {given}" if given else " with its default options"
    return "\n".join(
        [
            f"Counted from the code{with_options}, for a perceptron of 4,810 params and a client "
            f"with {EXAMPLES} examples that does {STEPS} steps of {BATCH_SIZE} examples:",
            "",
            *lines,
        ]
    )


def source_of(name: str) -> str:
    """Returns an algorithm's file from its first definition on, without docstrings.

    Codecs share files, so for a codec only the definitions that it uses are returned.
    """
    path = Path(inspect.getsourcefile(inspect.unwrap(FACTORIES[name])))
    lines = path.read_text().splitlines()
    tree = ast.parse("\n".join(lines))
    removed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            first = node.body[0]
            removed |= set(range(first.lineno, first.end_lineno + 1))
    definitions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    starts = [min([n.lineno, *(each.lineno for each in n.decorator_list)]) for n in definitions]
    if name in algorithms:
        return "\n".join(
            line for i, line in enumerate(lines, 1) if i >= min(starts) and i not in removed
        )
    used = names_used(name, {node.name: node for node in definitions})
    blocks = [
        "\n".join(lines[i - 1] for i in range(start, node.end_lineno + 1) if i not in removed)
        for start, node in zip(starts, definitions, strict=True)
        if node.name in used
    ]
    return "\n\n\n".join(blocks)


def names_used(name: str, definitions: dict[str, ast.AST]) -> set[str]:
    """Returns the names of the definitions that `name` uses, and `name` itself."""
    used, found = set(), {name}
    while found:
        used |= found
        nodes = [node for each in found for node in ast.walk(definitions[each])]
        found = {n.id for n in nodes if isinstance(n, ast.Name) and n.id in definitions} - used
    return used
