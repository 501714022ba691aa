"""Makes an ordinary algorithm from an algorithm and the stages of its wrappers.

A rule replaces the vectors of all updates by one estimate. `contribute` gives each vector a weight,
so each leaf of a contribution is either free of the vectors, or a leaf of a vector times its
weight. The server adds the free leaves, the weights and the rule's summands of all clients, and
multiplies the summed weights by the estimate. So nothing else of a model's size is summed.
"""

import itertools
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, Asynchrony, WeightedSum
from fedjax_algos.core.algorithm import (
    VECTORS,
    Arrived,
    Static,
    contribution_of,
    unite,
    update_in,
    vector_kinds,
    vectors_like,
)
from fedjax_algos.core.checks import check_kind, check_like, described
from fedjax_algos.core.randomness import server_key
from fedjax_algos.core.trees import along, is_key, scale
from fedjax_algos.wrappers import stages
from fedjax_algos.wrappers.linear import Shares, fields_read, splitter
from fedjax_algos.wrappers.privacy.public import public_dispatch, public_fields, ratio
from fedjax_algos.wrappers.refusals import check_broadcast, check_fit, check_order
from fedjax_algos.wrappers.stages import divide, non_negative_moments, shapes_of


class Message(NamedTuple):
    """A client's message; `extra` is always sent."""

    extra: dict[str, Any]
    sent: Any  # the last stage's message, and the counts and choices
    like: Static  # shapes of the algorithm's own vectors


class Sums(NamedTuple):
    """The sums for a rule."""

    shares: Shares
    weights: list[jax.Array]  # a float[] for each vector
    summand: Any


def add(
    name: str,
    algorithm: Algorithm,
    *,
    client: Sequence[stages.ClientStage] = (),
    server: Sequence[stages.ServerStage] = (),
    rule: stages.Rule | None = None,
    down: stages.Down | None = None,
    needs: Sequence[str] = (),
    fix: str = "",
) -> Algorithm:
    """Adds the stages of a wrapper to an algorithm.

    Args:
      name: the wrapper's name, for messages.
      algorithm: the algorithm to wrap.
      client, server, rule, down: the stages, in their order.
      needs: requirements on the algorithm, by the names of `refusals.NEEDS`.
      fix: advice if it fails one; by default to leave the wrapper out.

    Raises:
      ValueError: for an algorithm that fails a requirement, or stages in a wrong order.
    """
    before = algorithm.transport
    alone = algorithm._replace(transport=None)
    if before is None or any(a is not b for a, b in zip(alone, before.made, strict=True)):
        by_hand = before is not None and (before.rule or before.server)
        found = f"{name}: the algorithm was changed after its last wrapper"
        require(not by_hand, f"{found}; change the algorithm first, then wrap it")
        before = stages.Transport(algorithm)
    for each in client:
        check_kind("client", each, stages.ClientStage, "give a list of ClientStage")
    for stage in server:
        check_kind("server", stage, stages.ServerStage, "give a list of ServerStage")
        one = (stage.one is None) != (stage.all is None)
        require(one, f"{stage.name}: one and all are both given or missing; give one of the two")
    added = stages.Transport(before.base, tuple(client), tuple(server), rule, down)
    check_order(name.partition(":")[0], algorithm)
    check_fit(name, before, added, [*needs], fix or f"leave {name} out")
    both = {"client": before.client + added.client, "server": before.server + added.server}
    return compose(before._replace(**both, rule=rule or before.rule, down=down or before.down))


def compose(transport: stages.Transport) -> Algorithm:
    """Makes the algorithm of a transport."""
    base, path = transport.base, _Path(transport.base, transport)
    reports = base.report or any(stage.report for stage in path.reporting)
    changes = {
        "client_init": path.client_init if path.keeps else base.client_init,
        "init": path.init if path.served else base.init,
        "personal": path.personal if base.personal else None,
        "report": path.report if reports else None,
        "prelude": base.prelude and _Path(base.prelude, transport, " of a prelude").of_phase(),
    }
    made = path.of_phase()._replace(**changes, transport=None)
    return made._replace(transport=transport._replace(made=made))


class _Path:
    """The functions of an algorithm, or of a prelude, with the stages of its wrappers."""

    def __init__(self, phase: Any, transport: stages.Transport, suffix: str = ""):
        self.phase, self.transport, self.suffix = phase, transport, suffix

        def after(parts, stage):
            return jax.tree.map(lambda kind: stage.kind(kind) if kind in VECTORS else kind, parts)

        # before the stages of clients, and after each
        self.parts = [*itertools.accumulate(transport.client, after, initial=phase.traits.parts)]
        rule, server = transport.rule, transport.server
        self.changing = [stage for stage in transport.client if stage.place != stages.OBSERVE]
        # in the order of their memories
        self.reporting: list[Any] = [*server, rule] if rule else [*server]
        self.keeps = not suffix and any(stage.first for stage in transport.client)
        self.served = bool(server or rule or transport.down)
        self.acts = bool(server or rule)  # on updates
        self.stacked = any(each.all for each in server) or bool(rule and rule.summand is None)

    def of_phase(self) -> Any:
        """Returns the algorithm, or the prelude."""
        phase, down, traits = self.phase, self.transport.down, self.phase.traits
        made: dict[str, Any] = {"contribute": self.contribute}
        if self.transport.client:
            traits = traits._replace(parts=self.parts[-1])
            made |= {"client_update": self.client_update, "decode": self.decode}
        if self.served:
            made |= {"broadcast": self.broadcast, "server_update": self.server_update}
        if down is not None or (self.served and phase.download is not None):
            made |= {"download": self.download}
            traits = traits._replace(catch_up=down.catch_up if down else traits.catch_up)
        if self.stacked:
            traits = traits._replace(reduce="stack")
        if (rule := self.transport.rule) is not None:
            traits = traits._replace(offers=rule.offers, steps_alone=rule.private is not None)
        if rule is not None and rule.equal_weights:
            reason = "the server remembers updates with equal weights; use the planner barrier"
            start: str = "barrier"
            allowed: tuple[str, ...] = ("barrier",)
            default, known = traits.asynchrony.default, traits.asynchrony.allowed
            if rule.private:
                reason = "noise needs equally many updates in each server step; use rounds"
                reason += ", or the planner buffered"
                allowed = ("buffered",) if known is None or "buffered" in known else ()
                start = default if default.startswith("buffered") else "buffered"
            traits = traits._replace(asynchrony=Asynchrony(start, allowed, reason))
        return phase._replace(**made, traits=traits, transport=self.transport)

    def client_init(self, params, key):
        own = self._first(params, self.transport.client)
        return stages.Row(self.phase.client_init(params, key), own)

    def _first(self, params, owners, *more):
        """Returns the first memory of each stage or rule among the `owners`."""
        like = vectors_like(self.phase.traits, params)
        zeros = [jax.tree.map(jnp.zeros_like, tree) for tree in like]
        return tuple(each.first(zeros, *more) if each.first else () for each in owners)

    def client_update(self, broadcast, *arguments):
        row, own = arguments[0], ((),) * len(self.transport.client)
        if self.keeps:
            (row, own), arguments = row, (row.inner, *arguments[1:])
        made = self.phase.client_update(broadcast, *arguments)
        inner, update, report = ((), made, None) if self.suffix else made
        message, own, metrics = self._send(update, own, stages.Client(broadcast, *arguments[-3:]))
        if self.suffix:
            return message
        if metrics:
            metrics = _joined("a stage", report.metrics, metrics)
            report = report._replace(metrics=metrics)
        return (stages.Row(inner, own) if self.keeps else inner), message, report

    def _send(self, update, own, client):
        """Returns the message of an update, the memories and the metrics."""
        sent, update = update, self.phase.decode(update)
        vectors, rest = divide(self.parts[0], update)
        message, client = vectors, client._replace(rest=rest)
        like, names = shapes_of(vectors), Counter[str]()
        extra, kept, metrics = {}, [], {}
        for stage, memory, parts in zip(self.transport.client, own, self.parts[1:], strict=True):
            number, kinds = names[stage.name], vector_kinds(parts)
            tags = zlib.crc32((stage.name + self.suffix).encode()), number
            names[stage.name] += 1
            # the second of two equal stages draws other numbers
            inputs = client._replace(kinds=kinds, message=message, tags=tags[: 1 + (number > 0)])
            made, name = stage.apply(vectors, memory, inputs), f"the stage {stage.name}"
            check_kind(f"{name}: its result", made, stages.Sent, "return Sent(message, own)")
            check_like(f"{name}: Sent.own: ", made.own, memory, "return it as first makes it")
            if stage.place != stages.OBSERVE:
                message, vectors = made.message, _undone(stage, made.message, parts)
            reads = stage.place == stages.OBSERVE and made.extra
            if reads and any(each.private for each in self.transport.client):
                found = f"{name} sends numbers of the clients' examples without noise"
                raise ValueError(f"{found}; leave {stage.name} or the local noise out")
            kept.append(made.own)
            extra = _joined(name, extra, made.extra)
            metrics = _joined(name, metrics, made.metrics)
        if self.changing:
            sent = message, rest
        return Message(extra, sent, Static(like)), tuple(kept), metrics

    def decode(self, message):
        # the words of a random key can be stacked and masked
        extra = jax.tree.map(lambda v: jax.random.key_data(v) if is_key(v) else v, message.extra)
        if self.changing:
            coded, rest = message.sent
            vectors = _undone(self.changing[-1], coded, self.parts[-1])
        else:
            vectors, rest = divide(self.parts[-1], self.phase.decode(message.sent))
        if extra or shapes_of(vectors) != message.like.value:
            return Arrived(vectors, rest, extra, message.like)
        return unite(self.parts[-1], vectors, rest)

    def init(self, params, population):
        inner, down = self.phase.init(params, population), self.transport.down
        own = self._first(inner.params, self.reporting, population)
        if down is not None:
            sent = self.phase.broadcast(inner, jnp.int32(0))
            check_broadcast(self.phase, sent, inner.params)
            held, _ = divide(self.phase.traits.broadcast, sent) if down.held else ((), ())
            own = (*own, jax.tree.map(jnp.copy, held))
        numbers = map(jnp.float32, (population.num_clients, population.cohort_size))
        facts = stages.Facts(*numbers, jnp.asarray(population.seed), jnp.int32(0))
        return joined(inner, own, facts)

    def personal(self, server, row):
        server = server.inner if self.served else server
        return self.phase.personal(server, row.inner if self.keeps else row)

    def report(self, server):
        inner, memories = (server.inner, server.own) if self.served else (server, ())
        found = self.phase.report(inner) if self.phase.report else {}
        for stage, own in zip(self.reporting, memories, strict=False):
            found = _joined(stage.name, found, stage.report(own) if stage.report else {})
        return found

    def broadcast(self, server, group):
        sent, down = self.phase.broadcast(server.inner, group), self.transport.down
        if down is None:
            return sent
        parts, held = self.phase.traits.broadcast, server.own[-1]
        vectors, rest = divide(parts, sent, "broadcast")
        if not down.held:
            check_broadcast(self.phase, sent, server.params)
            held = non_negative_moments(parts, down.decode(self._encoded(server, vectors)))
        return unite(parts, held, rest)

    def download(self, server, group):
        if self.transport.down is None:
            return self.phase.download(server.inner, group)
        sent = self.phase.broadcast(server.inner, group)
        vectors, rest = divide(self.phase.traits.broadcast, sent, "broadcast")
        return self._encoded(server, vectors), rest

    def _encoded(self, server, vectors):
        """Encodes a broadcast."""
        down, name = self.transport.down, "prelude's broadcast" if self.suffix else "broadcast"
        if down.held:
            vectors = jax.tree.map(jnp.subtract, vectors, server.own[-1])
        key = server_key(server.facts.seed, server.facts.step)
        tag = zlib.crc32(f"{down.name} of a {name}".encode())
        return down.encode(jax.random.fold_in(key, tag), vectors)

    def contribute(self, update, dispatch, staleness, server=None):
        if not self.acts:
            inner = server.inner if self.served else server
            update = update_in(self.parts[-1], update)
            return contribution_of(self.phase, update, dispatch, staleness, inner)
        one = self._opened(update, dispatch, staleness)
        for place, stage in enumerate(self.transport.server):
            one = self._one(stage, place, server, one)
        return self._summand(server, one)

    def _opened(self, decoded, dispatch, staleness):
        """Returns the decoded update of a dispatch as an `Arrived`."""
        if not isinstance(decoded, Arrived):
            vectors, rest = divide(self.parts[-1], decoded)
            decoded = Arrived(vectors, rest, {}, Static(shapes_of(vectors)))
        return decoded._replace(dispatch=dispatch, staleness=staleness)

    def _key(self, server, place):
        key = server_key(server.facts.seed, server.facts.step)
        return jax.random.fold_in(jax.random.fold_in(key, place), int(bool(self.suffix)))

    def _one(self, stage, place, server, one):
        """Applies a stage to a single update."""
        key = jax.random.fold_in(self._key(server, place), one.dispatch.client)
        inputs = one.vectors, one.extra, one.dispatch, server.own[place], key, server.facts
        return one._replace(vectors=stage.one(*inputs))

    def _contributed(self, server, one):
        update = unite(self.parts[-1], one.vectors, one.rest)
        return contribution_of(self.phase, update, one.dispatch, one.staleness, server.inner)

    def _shares(self, server, one):
        """Returns an update's contribution without its vectors, and their weights, float[] each."""

        def contribute(vectors, one):
            return self._contributed(server, one._replace(vectors=vectors))

        one = one._replace(vectors=())
        split = splitter(contribute, one.like.value, one)
        if isinstance(split, str):
            name = (self.transport.rule or self.transport.server[0]).name
            found = f"{name} weighs updates, which does not fit this algorithm's contribute"
            fix = f"leave {name} out, or let contribute return numbers times the update"
            raise ValueError(f"{found}: {split}; {fix}")
        if (rule := self.transport.rule) is not None and rule.equal_weights:
            part = 0 if rule.private else 1  # the shares or the weights
            fields = fields_read(lambda d: split(one._replace(dispatch=d))[part], one.dispatch)
            if rule.private:
                fields = [name for name in fields if name not in public_fields(self.phase.local, 0)]
                fields += {"staleness"} & {*fields_read(lambda one: split(one)[0].free, one)}
            found = f"{rule.name} needs equal weights, but clients' depend on their"
            fix = f"give weighting=uniform, or {rule.equal_weights}"
            require(not fields, f"{found} {' and '.join(fields)}; {fix}")
        return split(one)

    def _summand(self, server, one, factor=None):
        """Returns the summands of an update, times a factor."""
        rule = self.transport.rule
        scaled = stages.same if factor is None else partial(scale, factor)
        if rule is None:
            return scaled(self._contributed(server, one))
        (shares, weights), summand = scaled(self._shares(server, one)), ()
        if rule.summand is not None:
            if rule.private:  # only staleness makes an update weigh less than others
                stale, fresh = (
                    self._public(server, one.like.value, t)[1] for t in (one.staleness, 0)
                )
                weights = list(map(ratio, stale, fresh))
            rest = one.dispatch, server.own[len(self.transport.server)], server.facts
            summand = rule.summand(one.vectors, weights, one.extra, *rest)
        return Sums(shares, weights, summand)

    def server_update(self, server, sums, count, group):
        own, facts, rule = [*server.own], server.facts, self.transport.rule
        cohort: Any = None
        if self.stacked:
            cohort, sums = self._of_cohort(server, sums, own)
        if rule is not None:
            place, (*_, (structure, shapes)) = len(self.transport.server), sums.shares.form.value
            summed, shares = stages.Summed(sums.summand, sums.weights, count), sums.shares
            read = cohort if rule.summand is None else summed
            made = rule.estimate(read, own[place], self._key(server, place), facts)
            estimate, own[place] = _pair(rule, made, own[place])
            fix = "return one value of each vector"
            check_like(f"the estimate of {rule.name}: ", estimate, structure.unflatten(shapes), fix)
            if rule.private:  # as if the expected number of updates had arrived
                shares, _ = self._public(server, shares.form.value[-1])
                shares = shares._replace(leaves=scale(facts.cohort_size, shares.leaves))
                count = facts.cohort_size.astype(jnp.int32)
            sums = shares.times(non_negative_moments(self.parts[0], estimate))
        for stage in self.transport.server:
            if stage.reweights:
                name = f"{stage.name} does not fit this algorithm: the sum of its contributions"
                check_kind(name, sums, WeightedSum, f"leave {stage.name} out")
                # a sum without any weight has the mean 0
                sums = sums._replace(weight=jnp.where(sums.weight > 0, sums.weight, 1))
        inner = self.phase.server_update(server.inner, sums, count, group)
        if self.suffix:
            return joined(inner, own, facts)
        down, parts = self.transport.down, self.phase.traits.broadcast
        if down is not None and down.held:
            vectors, _ = divide(parts, self.phase.broadcast(inner, group))
            change = down.decode(self._encoded(server, vectors))
            own[-1] = non_negative_moments(parts, jax.tree.map(jnp.add, own[-1], change))
        return joined(inner, own, facts._replace(step=facts.step + 1))

    def _public(self, server, like, staleness=0):
        """Returns the shares and weights of an update, from its public facts alone."""
        dispatch = public_dispatch(self.phase.local, server.facts.step)
        one = Arrived([], [], {}, Static(like), dispatch, jnp.asarray(staleness, jnp.int32))
        return self._shares(server, one)

    def _of_cohort(self, server, stack, own):
        """Returns the cohort after the server's stages, and the sums; sets memories in `own`."""
        zeros = jnp.zeros_like(stack.dispatches.client)
        each = jax.vmap(self._opened)(stack.updates, stack.dispatches, zeros)
        weights = jax.vmap(lambda one: self._shares(server, one)[1])(each)
        weights = [jnp.where(stack.mask, weight, 0) for weight in weights]
        factor = jnp.ones_like(stack.dispatches.share)
        cohort = stages.Cohort(each.vectors, weights, each.extra, each.dispatch, stack.mask, factor)
        for place, stage in enumerate(self.transport.server):
            if stage.all is None:
                one = partial(self._one, stage, place, server)
                each = jax.vmap(one)(each._replace(vectors=cohort.vectors))
                cohort = cohort._replace(vectors=each.vectors)
            else:
                made = stage.all(cohort, own[place], self._key(server, place), server.facts)
                cohort, own[place] = _pair(stage, made, own[place])
        each = each._replace(vectors=cohort.vectors)
        summand = partial(self._summand, server)
        if not any(stage.reweights for stage in self.transport.server):
            return cohort, total(jax.vmap(summand)(each), stack.mask)
        weights = [cohort.factor * weight for weight in cohort.weights]
        sums = total(jax.vmap(summand)(each, cohort.factor), stack.mask)
        return cohort._replace(weights=weights), sums


def total(tree: Any, mask: jax.Array) -> Any:
    """Sums each leaf over its first axis, where `mask` holds."""
    return jax.tree.map(lambda x: jnp.where(along(mask, x), x, 0).sum(0, dtype=x.dtype), tree)


def joined(inner: Any, own: Sequence[Any], facts: stages.Facts) -> stages.Server:
    """Joins the server state of an algorithm and its wrappers."""
    return stages.Server(inner.params, inner._replace(params=()), tuple(own), facts)


def _undone(stage, message, parts):
    """Decodes a stage's message and checks the vectors."""
    vectors, number = stage.undo(message), len(vector_kinds(parts))
    fits = isinstance(vectors, list) and len(vectors) == number
    fix = f"return a list with one tree for each of the {number} vectors"
    require(fits, f"the stage {stage.name}: undo made {described(vectors)} of its message; {fix}")
    return non_negative_moments(parts, vectors)


def _pair(stage, made, own):
    """Checks the result of a stage of the server."""
    fix = "return a pair of its result and its memory"
    is_pair = isinstance(made, tuple) and len(made) == 2  # and not a Cohort
    require(is_pair, f"{stage.name} returned {described(made)}; {fix}")
    check_like(f"the memory that {stage.name} returned: ", made[1], own, "return it as first does")
    return made


def _joined(name, numbers, more):
    """Merges the named numbers of several stages."""
    taken = [each for each in more if each in numbers]
    require(not taken, f"{name} has the name {taken[:1]}, which is taken; rename it")
    return {**numbers, **more}
