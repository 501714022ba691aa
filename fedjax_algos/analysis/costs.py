"""Counts a local update's operations and memory in the trace of the algorithm's functions."""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jax.interpreters.partial_eval import dce_jaxpr

from fedjax_algos.analysis import flops
from fedjax_algos.analysis.flops import Flops, count, total
from fedjax_algos.core import Algorithm, Dispatch
from fedjax_algos.core.checks import check_not_consumed
from fedjax_algos.core.local_steps import without_bounds
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.exchange import exchange_shapes, send, shared_of
from fedjax_algos.engine.state import FederatedState, row_shapes


class ClientMemory(NamedTuple):
    """Bytes that an algorithm needs on a client, besides its examples and one step's gradient.

    Attributes:
      between_rounds: the client's state, and whatever later broadcasts build upon.
      in_round: the state, the broadcast, and the arrays that local training changes.
      in_training: the arrays that local training changes, and the arrays that one of its loops
        reads; nothing else counts.
    """

    between_rounds: int
    in_round: int
    in_training: int


def count_flops(algorithm: Algorithm, state: FederatedState, data: FederatedData) -> Flops:
    """Counts the floating-point operations of a local update, as a function of its dispatch.

    They are counted in the traces of the algorithm's and the prelude's `client_update`, by the
    rules of `flops.py`: gradients, optimiser and corrections, with the actual number of local steps
    and passes over the examples. The masked rows of a short batch count, because they are computed.
    The server's functions are not counted.

    Args:
      algorithm: the algorithm whose local updates are counted.
      state: an engine's state, or its shapes.
      data: the clients' examples, or their shapes.

    Returns:
      `count_flops(...).of(dispatches)` is float64[...] for dispatches of NumPy arrays [...]. The
      count has a `fixed` part and `loops`: FedAvg's has one loop, of `num_steps` times its `body`.

    Raises:
      UncountedError: for a computation that the rules do not cover.
    """
    exchanges = _traced(algorithm, *_shapes_of(state, data))
    return total([count(exchange.jaxpr, _INTEGERS) for exchange in exchanges])


def count_report_flops(algorithm: Algorithm, state: FederatedState, data: FederatedData) -> Flops:
    """Counts the operations of a candidate's report; see `count_flops`."""
    selection = algorithm.selection
    assert selection is not None
    tree, leaves = _shapes_of(state, data)
    shapes = exchange_shapes(algorithm, *tree.unflatten(leaves))
    params = jax.eval_shape(lambda server: server.params, tree.unflatten(leaves)[0])

    def report(dispatch, params, row, view, key):
        view = view._replace(num_examples=dispatch.num_examples, first_step=dispatch.first_step)
        return selection.value(view.model(params), row, view, dispatch, key)

    with without_bounds():
        arguments = shapes.dispatch, params, shapes.row, shapes.view, shapes.key
        return count(jax.make_jaxpr(report)(*arguments), _INTEGERS)


def count_memory(algorithm: Algorithm, state: FederatedState, data: FederatedData) -> ClientMemory:
    """Counts the memory that the algorithm needs on a client, from the shapes of its trace.

    Between rounds it is the client's state. In a round it is this state, the broadcast (including
    the model's statistics), and the float arrays that the loops change: the local model, moving
    optimiser statistics, the sum of a full gradient. With a prelude the larger exchange counts. The
    examples, frozen params, and whatever lives within one step (activations, gradients) are not
    counted. `in_training` is the FedGBO paper's Table I: the local model takes the place of x
    unless the local steps read it, so FedAvg needs |x|, FedProx 2|x| and MFL |x| + |s|.

    Args:
      algorithm, state, data: as for `count_flops`.
    """
    in_round, in_training = 0, 0
    for exchange in _traced(algorithm, *_shapes_of(state, data)):
        live, _ = dce_jaxpr(exchange.jaxpr.jaxpr, True, instantiate=True)
        pairs = zip(live.invars, exchange.examples, strict=True)
        loops = [*_loops(live, {var for var, is_example in pairs if is_example})]
        changed = sum(changed for changed, _ in loops)
        in_round = max(in_round, exchange.inputs + changed)
        in_training = max(in_training, changed + max((read for _, read in loops), default=0))
    between_rounds = tree_bytes(row_shapes(algorithm, state))
    if algorithm.traits.catch_up:
        sent = jax.eval_shape(functools.partial(send, algorithm), state.server)
        between_rounds += tree_bytes(sent)
    return ClientMemory(between_rounds, in_round, in_training)


_EXAMPLES = (jax.tree_util.SequenceKey(3), jax.tree_util.GetAttrKey("examples"))  # of the view
_FLOATS = ("share", "learning_rate")  # fields of a dispatch
_FIELDS = [name for name in Dispatch._fields if name not in Dispatch._field_defaults]
_INTEGERS = [None if name in _FLOATS else operator.attrgetter(name) for name in _FIELDS]


class _Exchange(NamedTuple):
    """A `client_update` traced for one client."""

    jaxpr: ClosedJaxpr
    inputs: int  # bytes of the broadcast, the model's statistics and the client's state
    examples: list[bool]  # for each input of the trace: whether it is one of the examples


def _shapes_of(state, data):
    """Flattens the shapes of the arguments of `exchange_shapes` into a tree and leaves."""
    check_not_consumed(state)
    dispatch = Dispatch(*(0.0 if name in _FLOATS else np.int32(0) for name in _FIELDS))
    inputs = state.server, shared_of(state), data, dispatch
    leaves, tree = jax.tree.flatten(inputs)
    shapes = (jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return tree, tuple(shapes)


@functools.lru_cache(maxsize=64)
def _traced(algorithm: Algorithm, tree: Any, leaves: tuple) -> list[_Exchange]:
    """Traces the `client_update`s of a round and its prelude, once for all runs of an engine."""
    shapes = exchange_shapes(algorithm, *tree.unflatten(leaves))

    def exchange(phase, broadcast, rows):
        def local_update(dispatch, broadcast, rows, view, key):
            view = view._replace(num_examples=dispatch.num_examples, first_step=dispatch.first_step)
            return phase.client_update(broadcast, *rows, view, dispatch, key)

        arguments = shapes.dispatch, broadcast, rows, shapes.view, shapes.key
        with without_bounds():
            jaxpr = jax.make_jaxpr(local_update)(*arguments)
        paths = [path for path, _ in jax.tree.leaves_with_path(arguments)]
        examples = [path[:2] == _EXAMPLES for path in paths]
        return _Exchange(jaxpr, tree_bytes((broadcast, rows, shapes.view.statistics)), examples)

    prelude, second = algorithm.prelude, exchange(algorithm, shapes.received, (shapes.row,))
    return [second] if prelude is None else [exchange(prelude, shapes.received[0], ()), second]


def _loops(jaxpr, data):
    """Yields (bytes changed, bytes read) of each outermost loop, without variables in `data`."""
    used, data = flops.used_by(jaxpr), set(data)
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        from_data = [not isinstance(atom, Literal) and atom in data for atom in eqn.invars]
        if name in flops.CALLS:
            inner = flops.called(eqn).jaxpr
            yield from _loops(inner, {v for v, d in zip(inner.invars, from_data, strict=True) if d})
        elif name in ("while", "scan"):
            yield _loop_bytes(eqn, used, from_data)
            continue
        if any(from_data):
            data.update(eqn.outvars)


def _loop_bytes(eqn, used, from_data):
    if eqn.primitive.name == "while":
        first, num_consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        body, live = flops.live_body(eqn, used)
    else:
        first, (num_consts, num_carry) = 0, flops.scan_inputs(eqn)
        body, live = eqn.params["jaxpr"].jaxpr, [True] * num_carry
    after = iter(body.outvars)  # the carries that are used
    results = [None] * num_consts + [next(after) if alive else None for alive in live]
    results += [None] * (len(body.invars) - len(results))  # for scanned inputs
    needed, changed, read = flops.used_by(body), 0, {}
    inputs = zip(body.invars, results, eqn.invars[first:], from_data[first:], strict=True)
    for var, result, atom, skip in inputs:
        if result is not None and result is not var:
            changed += _float_bytes(atom)
        elif var in needed and not skip and not isinstance(atom, Literal):
            read[atom] = _float_bytes(atom)  # counted once even if passed several times
    return changed, sum(read.values())


def _float_bytes(atom):
    return atom.aval.size * atom.aval.dtype.itemsize if flops.is_float(atom.aval) else 0
