"""The papers' boxes in scalar NumPy, one small class each, written from the specification alone.

Only the order of the examples comes from the library. A class changes what differs from FedAvg:
`move` and `correct` are what a local step does before weight decay, `direction` what it does after.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from helpers import positions


class Turn(NamedTuple):
    """One client's turn."""

    client: int  # i
    round: int  # t, from 1
    steps: int  # J_i, or K_i, or S_i
    full_steps: int  # S
    eta: float  # the client's rate
    batch: Callable[[int, float], float]  # (k, y): mean gradient of step k's examples at y
    full: Callable[[float], float]  # mean gradient of all n_i examples


def transcription(
    name, settings, clients, sets, steps, *, x=0.5, seed=0, batch_size=2, rate, full_steps, decay=0
):
    """The global x after each round; `rate` is a function of the round from 0."""
    rule = RULES[name](x, len(clients), len(sets[0]), **settings)
    visits, history = [0] * len(clients), []
    for t, cohort in enumerate(sets):
        turns = []
        for i in cohort:
            batch, full = gradients(seed, i, visits[i], clients[i], batch_size)
            turns.append(Turn(i, t + 1, steps[i], full_steps, rate(t), batch, full))
            visits[i] += 1
        counts = [len(clients[i]["a"]) if rule.weighting == "examples" else 1.0 for i in cohort]
        p = np.array(counts) / sum(counts)
        rule.ask(turns, p)
        uploads = []
        for turn in turns:
            y = rule.begin(turn)
            for k in range(turn.steps):
                y = rule.move(turn, y)
                g = rule.correct(turn, k, y, turn.batch(k, y))
                y = y - turn.eta * rule.direction(g + decay * y)
            uploads.append(rule.end(turn, y))
        rule.serve(turns, p, *map(np.array, zip(*uploads, strict=True)))
        history.append(rule.x)
    return history


def gradients(seed, client, visit, examples, batch_size):
    """A turn's minibatch gradients and full gradient; whole data as batches if the size is None."""
    a, b = examples["a"], examples["b"]

    def full(y):
        return float(np.mean(a * (y - b)))

    def batch(k, y):
        rows = positions(seed, client, visit, len(a), k, batch_size)
        return float(np.mean(a[rows] * (y - b[rows])))

    return (batch if batch_size else lambda k, y: full(y)), full


class FedAvg:
    weighting, server_learning_rate = "examples", 1.0

    def __init__(self, x, num_clients, cohort_size, **settings):
        self.x, self.N, self.C = x, num_clients, cohort_size / num_clients
        self.rows = {}  # what clients keep
        vars(self).update(settings)
        self.eta = self.server_learning_rate
        self.init()

    def init(self):
        """The server's other state."""

    def ask(self, turns, p):
        """A first exchange with the cohort."""

    def begin(self, turn):
        return self.x

    def move(self, turn, y):
        return y

    def correct(self, turn, k, y, g):
        return g

    def direction(self, g):
        return g

    def end(self, turn, y):
        return (self.x - y,)

    def serve(self, turns, p, deltas):
        self.x = self.x - self.eta * p @ deltas


class FedProx(FedAvg):
    mu = 0.01

    def correct(self, turn, k, y, g):
        return g + self.mu * (y - self.x)


class FedAvgM(FedAvg):
    beta, dampened, m = 0.9, False, 0.0

    def serve(self, turns, p, deltas):
        self.m = self.beta * self.m + (1 - self.beta if self.dampened else 1) * p @ deltas
        self.x = self.x - self.eta * self.m


class FedAdam(FedAvg):
    b1, b2, tau, server_learning_rate, m = 0.9, 0.99, 1e-3, 0.1, 0.0

    def init(self):
        self.v = getattr(self, "initial_v", self.tau**2)

    def second(self, v, g):
        return self.b2 * v + (1 - self.b2) * g**2

    def serve(self, turns, p, deltas):
        g = p @ deltas
        self.v = self.second(self.v, g)
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.x = self.x - self.eta * self.m / (np.sqrt(self.v) + self.tau)


class FedYogi(FedAdam):
    def second(self, v, g):
        return v - (1 - self.b2) * g**2 * np.sign(v - g**2)


class FedAdagrad(FedAdam):
    b1 = 0.0

    def second(self, v, g):
        return v + g**2


class FedRMSProp(FedAdam):
    b1, beta, initial_v = 0.0, 0.9, 1.0

    def second(self, v, g):
        return self.beta * v + (1 - self.beta) * g**2


class FixedStatistics(FedAvg):
    """U, T and the statistics of Table II; a subclass says what gradient T is given."""

    weighting, optimizer, beta, b2, eps = "uniform", "sgdm", 0.9, 0.99, 1e-3

    def init(self):
        self.m, self.v = 0.0, 1.0

    def direction(self, g):  # U
        if self.optimizer != "rmsprop":
            g = self.beta * self.m + (1 - self.beta) * g
        return g if self.optimizer == "sgdm" else g / (np.sqrt(self.v) + self.eps)

    def track(self, g):  # T
        decay = self.b2 if self.optimizer == "adam" else self.beta
        self.m = self.beta * self.m + (1 - self.beta) * g
        self.v = decay * self.v + (1 - decay) * g**2


class FedGBO(FixedStatistics):
    """T reads the mean over clients and steps of the gradients that U read."""

    def begin(self, turn):
        self.seen = 0.0
        return self.x

    def direction(self, g):
        self.seen += g
        return super().direction(g)

    def end(self, turn, y):
        return self.x - y, self.seen

    def serve(self, turns, p, deltas, seen):
        steps = np.array([turn.steps for turn in turns])
        self.track(p @ seen / (p @ steps))
        self.x = self.x - self.eta * p @ deltas


class MimeLite(FixedStatistics):
    """T reads the full gradients at x."""

    def statistic(self, turn):
        return turn.full(self.x)

    def end(self, turn, y):
        return self.x - y, self.statistic(turn)

    def serve(self, turns, p, deltas, gradients):
        self.x = self.x - self.eta * p @ deltas
        self.track(p @ gradients)


class MimeXlite(MimeLite):
    """One minibatch instead: the one that would come next in the client's own stream."""

    def statistic(self, turn):
        return turn.batch(turn.steps, self.x)


class MimeLiteMom(MimeLite):
    """Undampened momentum."""

    def direction(self, g):
        return self.beta * self.m + g

    def track(self, g):
        self.m = self.beta * self.m + g


class MimeMom(MimeLiteMom):
    def ask(self, turns, p):
        self.c = p @ np.array([turn.full(self.x) for turn in turns])

    def correct(self, turn, k, y, g):
        return g - turn.batch(k, self.x) + self.c

    def end(self, turn, y):
        return (self.x - y,)

    def serve(self, turns, p, deltas):
        self.x = self.x - self.eta * p @ deltas
        self.track(self.c)


class Mime(MimeMom):
    beta = 0.0


class MFL(FixedStatistics):
    """The statistics move in every local step, before it; the server averages them."""

    def begin(self, turn):
        self.old = self.m, self.v
        return self.x

    def direction(self, g):
        self.track(g)
        first = g if self.optimizer == "rmsprop" else self.m
        return first if self.optimizer == "sgdm" else first / (np.sqrt(self.v) + self.eps)

    def end(self, turn, y):
        m, v = self.m, self.v
        self.m, self.v = self.old
        return self.x - y, m, v

    def serve(self, turns, p, deltas, m, v):
        self.x = self.x - self.eta * p @ deltas
        self.m, self.v = p @ m, p @ v


class FedLGA(FedAvg):
    """Sign: Delta_i = w_i - w."""

    weighting, mode, strength, clip, fallback = "uniform", "outer", 1.0, False, "none"

    def serve(self, turns, p, deltas):
        deltas, done = -deltas, np.array([turn.steps for turn in turns])
        complete = done == turns[0].full_steps
        if not complete.any() and self.fallback == "max":
            complete = done == done.max()
        corrected = []
        for turn, delta, whole in zip(turns, deltas, complete, strict=True):
            c = 1.0
            if not whole and complete.any():
                v = deltas[complete].mean() - delta
                g = delta if self.mode == "update" else -delta / (turn.eta * turn.steps)
                c = 1 + self.strength * g * v * (g / delta if self.mode != "update" else 1)
                if self.clip:
                    c = min(max(c, 0.0), turn.full_steps / turn.steps)
            corrected.append(c * delta)
        self.x = self.x + self.eta * np.mean(corrected)


class FedNova(FedAvg):
    momentum, mu = 0.0, 0.0

    def begin(self, turn):
        self.u = 0.0
        return self.x

    def correct(self, turn, k, y, g):
        return g + self.mu * (y - self.x)

    def direction(self, g):
        self.u = self.momentum * self.u + g
        return self.u

    def end(self, turn, y):
        v = a = 0.0
        for _ in range(turn.steps):  # what the steps would add up to if every gradient were 1
            v = self.momentum * v + 1 - turn.eta * self.mu * a
            a = a + v
        return (self.x - y) / a, a, turn.steps

    def serve(self, turns, p, d, a, steps):
        tau = p @ (steps if self.mu != 0 else a)
        self.x = self.x - self.eta * tau * p @ d


class Scaffold(FedAvg):
    weighting, c = "uniform", 0.0

    def correct(self, turn, k, y, g):
        return g - self.rows.get(turn.client, 0.0) + self.c

    def end(self, turn, y):
        old = self.rows.get(turn.client, 0.0)
        new = old - self.c + (self.x - y) / (turn.steps * turn.eta)
        self.rows[turn.client] = new
        return self.x - y, new - old

    def serve(self, turns, p, deltas, changes):
        self.x = self.x - self.eta * p @ deltas
        self.c = self.c + sum(changes) / self.N


class FedDyn(FedAvg):
    weighting, alpha, h = "uniform", 0.01, 0.0

    def correct(self, turn, k, y, g):
        return g - self.rows.get(turn.client, 0.0) + self.alpha * (y - self.x)

    def end(self, turn, y):
        self.rows[turn.client] = self.rows.get(turn.client, 0.0) - self.alpha * (y - self.x)
        return (y,)

    def serve(self, turns, p, models):
        self.h = self.h - self.alpha / self.N * sum(models - self.x)
        self.x = np.mean(models) - self.h / self.alpha


class AdaBest(FedAvg):
    mu, beta = 0.02, 0.8

    def init(self):
        self.previous, self.last = self.x, {}

    def correct(self, turn, k, y, g):
        return g - self.rows.get(turn.client, 0.0)

    def end(self, turn, y):
        i, t = turn.client, turn.round
        h = self.rows.get(i, 0.0)
        self.rows[i] = h / (t - self.last.get(i, 0)) + self.mu * (self.x - y)
        self.last[i] = t
        return (y,)

    def serve(self, turns, p, models):
        average = p @ models
        h = self.beta * (self.previous - average)
        self.x, self.previous = average - h, average


class FedCM(FedAvg):
    alpha, M = 0.1, 0.0

    def correct(self, turn, k, y, g):
        return self.alpha * g + (1 - self.alpha) / (turn.eta * turn.steps) * self.M

    def serve(self, turns, p, deltas):
        self.M = p @ deltas
        self.x = self.x - self.eta * self.M


class GHBM(FedAvg):
    beta, tau, nesterov = 0.9, 1, False

    def init(self):
        self.past = [self.x]  # theta^0, theta^1, ...

    def mom(self, turn, y):
        if len(self.past) <= self.tau:
            return 0.0
        return (self.past[-self.tau - 1] - self.past[-1]) / self.tau

    def move(self, turn, y):
        return y - self.beta / turn.steps * self.mom(turn, y) if self.nesterov else y

    def correct(self, turn, k, y, g):
        if self.nesterov:
            return g
        return g + self.beta / (turn.eta * turn.steps) * self.mom(turn, y)

    def serve(self, turns, p, deltas):
        super().serve(turns, p, deltas)
        self.past.append(self.x)


class FedADC(GHBM):
    nesterov = True


class LocalGHBM(GHBM):
    scale = "participation"

    def init(self):
        self.past, self.last = [], {}

    def mom(self, turn, y):
        if turn.client not in self.rows:
            return 0.0
        gap = turn.round - self.last[turn.client]
        factor = self.C if self.scale == "participation" else 1 / gap
        return factor * (self.rows[turn.client] - self.x)

    def end(self, turn, y):
        self.rows[turn.client], self.last[turn.client] = self.x, turn.round
        return (self.x - y,)


class FedHBM(GHBM):
    beta, first, anchors = 1.0, "standard", ()

    def init(self):
        self.past, self.origin = [], self.x

    def mom(self, turn, y):
        i = turn.client
        absent = {"standard": lambda: y, "random": lambda: self.anchors[i]}
        anchor = self.rows[i] if i in self.rows else absent.get(self.first, lambda: self.origin)()
        return self.C * (anchor - y)

    def end(self, turn, y):
        self.rows[turn.client] = y
        return (self.x - y,)


RULES = {
    rule.__name__.lower(): rule
    for rule in (
        *(FedAvg, FedProx, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedRMSProp),
        *(FedGBO, MFL, MimeLite, MimeXlite, MimeLiteMom, Mime, MimeMom),
        *(FedLGA, FedNova, Scaffold, FedDyn, AdaBest, FedCM),
        *(GHBM, FedADC, LocalGHBM, FedHBM),
    )
}
