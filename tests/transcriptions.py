"""The papers' pseudo-code in scalar NumPy, one small class each, written from the papers alone.

Only the order of the examples comes from the library. A class overrides what differs from FedAvg:
`move` and `correct` are what a local step does before weight decay, `direction` what it does after.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from helpers import positions


class Dispatch(NamedTuple):
    """What one client of a round does."""

    client: int  # i
    round: int  # t, from 1
    steps: int  # J_i, or K_i, or S_i
    full_steps: int  # S
    eta: float  # the client's rate
    batch: Callable[[int, float], float]  # (k, y): mean gradient of step k's examples at y
    full: Callable[[float], float]  # mean gradient of all n_i examples
    loss: Callable[[float], float]  # mean loss of all n_i examples


def transcription(
    name, settings, clients, sets, steps, *, x=0.5, seed=0, batch_size=2, rate, full_steps, decay=0
):
    """The global x after each round; `rate` is a function of the round from 0."""
    rule = RULES[name](x, len(clients), len(sets[0]), **settings)
    numbers, history = [0] * len(clients), []
    for t, cohort in enumerate(sets):
        dispatches = []
        for i in cohort:
            of_client = functions(seed, i, numbers[i], clients[i], batch_size)
            dispatches.append(Dispatch(i, t + 1, steps[i], full_steps, rate(t), *of_client))
            numbers[i] += 1
        counts = [len(clients[i]["a"]) if rule.weighting == "examples" else 1.0 for i in cohort]
        p = np.array(counts) / sum(counts)
        rule.first_exchange(dispatches, p)
        uploads = []
        for dispatch in dispatches:
            y = rule.start(dispatch)
            for k in range(dispatch.steps):
                y = rule.move(dispatch, y)
                g = rule.correct(dispatch, k, y, dispatch.batch(k, y))
                y = y - dispatch.eta * rule.direction(g + decay * y)
            uploads.append(rule.finish(dispatch, y))
        rule.server_update(dispatches, p, *map(np.array, zip(*uploads, strict=True)))
        history.append(rule.x)
    return history


def functions(seed, client, number, examples, batch_size):
    """Gradients of batches, the full gradient and loss; a batch without a size is all data."""
    a, b = examples["a"], examples["b"]

    def full(y):
        return float(np.mean(a * (y - b)))

    def batch(k, y):
        rows = positions(seed, client, number, len(a), k, batch_size)
        return float(np.mean(a[rows] * (y - b[rows])))

    def loss(y):
        return float(np.mean(a * (y - b) ** 2 / 2))

    return (batch if batch_size else lambda k, y: full(y)), full, loss


class FedAvg:
    weighting, server_learning_rate = "examples", 1.0

    def __init__(self, x, num_clients, cohort_size, **settings):
        self.x, self.N, self.C = x, num_clients, cohort_size / num_clients
        self.rows = {}  # client state
        vars(self).update(settings)
        self.eta = self.server_learning_rate
        self.init()

    def init(self):
        """Sets the rest of the server state."""

    def first_exchange(self, dispatches, p):
        """Exchanges with the cohort before the local steps."""

    def start(self, dispatch):
        return self.x

    def move(self, dispatch, y):
        return y

    def correct(self, dispatch, k, y, g):
        return g

    def direction(self, g):
        return g

    def finish(self, dispatch, y):
        return (self.x - y,)

    def server_update(self, dispatches, p, deltas):
        self.x = self.x - self.eta * p @ deltas


class FedProx(FedAvg):
    mu = 0.01

    def correct(self, dispatch, k, y, g):
        return g + self.mu * (y - self.x)


class FedAvgM(FedAvg):
    beta, dampened, m = 0.9, False, 0.0

    def server_update(self, dispatches, p, deltas):
        self.m = self.beta * self.m + (1 - self.beta if self.dampened else 1) * p @ deltas
        self.x = self.x - self.eta * self.m


class FedAdam(FedAvg):
    b1, b2, tau, server_learning_rate, m = 0.9, 0.99, 1e-3, 0.1, 0.0

    def init(self):
        self.v = getattr(self, "initial_v", self.tau**2)

    def second(self, v, g):
        return self.b2 * v + (1 - self.b2) * g**2

    def server_update(self, dispatches, p, deltas):
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
    """T reads the mean, over clients and steps, of the gradients that U read."""

    def start(self, dispatch):
        self.seen = 0.0
        return self.x

    def direction(self, g):
        self.seen += g
        return super().direction(g)

    def finish(self, dispatch, y):
        return self.x - y, self.seen

    def server_update(self, dispatches, p, deltas, seen):
        steps = np.array([dispatch.steps for dispatch in dispatches])
        self.track(p @ seen / (p @ steps))
        self.x = self.x - self.eta * p @ deltas


class MimeLite(FixedStatistics):
    """T reads the full gradients at x."""

    def statistic(self, dispatch):
        return dispatch.full(self.x)

    def finish(self, dispatch, y):
        return self.x - y, self.statistic(dispatch)

    def server_update(self, dispatches, p, deltas, gradients):
        self.x = self.x - self.eta * p @ deltas
        self.track(p @ gradients)


class MimeXlite(MimeLite):
    """T reads one minibatch instead: the one that would come next in the client's stream."""

    def statistic(self, dispatch):
        return dispatch.batch(dispatch.steps, self.x)


class MimeLiteMom(MimeLite):
    """Momentum without dampening."""

    def direction(self, g):
        return self.beta * self.m + g

    def track(self, g):
        self.m = self.beta * self.m + g


class MimeMom(MimeLiteMom):
    def first_exchange(self, dispatches, p):
        self.c = p @ np.array([dispatch.full(self.x) for dispatch in dispatches])

    def correct(self, dispatch, k, y, g):
        return g - dispatch.batch(k, self.x) + self.c

    def finish(self, dispatch, y):
        return (self.x - y,)

    def server_update(self, dispatches, p, deltas):
        self.x = self.x - self.eta * p @ deltas
        self.track(self.c)


class Mime(MimeMom):
    beta = 0.0


class MFL(FixedStatistics):
    """The statistics are updated before each local step; the server averages them."""

    def start(self, dispatch):
        self.old = self.m, self.v
        return self.x

    def direction(self, g):
        self.track(g)
        first = g if self.optimizer == "rmsprop" else self.m
        return first if self.optimizer == "sgdm" else first / (np.sqrt(self.v) + self.eps)

    def finish(self, dispatch, y):
        m, v = self.m, self.v
        self.m, self.v = self.old
        return self.x - y, m, v

    def server_update(self, dispatches, p, deltas, m, v):
        self.x = self.x - self.eta * p @ deltas
        self.m, self.v = p @ m, p @ v


class FedLGA(FedAvg):
    """Sign: Delta_i = w_i - w."""

    weighting, mode, strength, clip, fallback = "uniform", "outer", 1.0, False, "none"

    def server_update(self, dispatches, p, deltas):
        deltas, done = -deltas, np.array([dispatch.steps for dispatch in dispatches])
        complete = done == dispatches[0].full_steps
        if not complete.any() and self.fallback == "max":
            complete = done == done.max()
        corrected = []
        for dispatch, delta, whole in zip(dispatches, deltas, complete, strict=True):
            c = 1.0
            if not whole and complete.any():
                v = deltas[complete].mean() - delta
                g = delta if self.mode == "update" else -delta / (dispatch.eta * dispatch.steps)
                c = 1 + self.strength * g * v * (g / delta if self.mode != "update" else 1)
                if self.clip:
                    c = min(max(c, 0.0), dispatch.full_steps / dispatch.steps)
            corrected.append(c * delta)
        self.x = self.x + self.eta * np.mean(corrected)


class FedNova(FedProx):
    momentum, mu = 0.0, 0.0

    def start(self, dispatch):
        self.u = 0.0
        return self.x

    def direction(self, g):
        self.u = self.momentum * self.u + g
        return self.u

    def finish(self, dispatch, y):
        v = a = 0.0
        for _ in range(dispatch.steps):  # the sum of the steps if every gradient were 1
            v = self.momentum * v + 1 - dispatch.eta * self.mu * a
            a = a + v
        return (self.x - y) / a, a, dispatch.steps

    def server_update(self, dispatches, p, d, a, steps):
        tau = p @ (steps if self.mu != 0 else a)
        self.x = self.x - self.eta * tau * p @ d


class QFedAvg(FedAvg):
    weighting, q = "uniform", 1.0

    def finish(self, dispatch, y):
        f, lipschitz = dispatch.loss(self.x) + 1e-10, 1 / dispatch.eta
        gradient = lipschitz * (self.x - y)
        h = self.q * f ** (self.q - 1) * gradient**2 + lipschitz * f**self.q
        return f**self.q * gradient, h

    def server_update(self, dispatches, p, deltas, h):
        self.x = self.x - sum(deltas) / sum(h)


class Scaffold(FedAvg):
    weighting, c = "uniform", 0.0

    def correct(self, dispatch, k, y, g):
        return g - self.rows.get(dispatch.client, 0.0) + self.c

    def finish(self, dispatch, y):
        old = self.rows.get(dispatch.client, 0.0)
        new = old - self.c + (self.x - y) / (dispatch.steps * dispatch.eta)
        self.rows[dispatch.client] = new
        return self.x - y, new - old

    def server_update(self, dispatches, p, deltas, changes):
        self.x = self.x - self.eta * p @ deltas
        self.c = self.c + sum(changes) / self.N


class FedDyn(FedAvg):
    weighting, alpha, h = "uniform", 0.01, 0.0

    def correct(self, dispatch, k, y, g):
        return g - self.rows.get(dispatch.client, 0.0) + self.alpha * (y - self.x)

    def finish(self, dispatch, y):
        self.rows[dispatch.client] = self.rows.get(dispatch.client, 0.0) - self.alpha * (y - self.x)
        return (y,)

    def server_update(self, dispatches, p, models):
        self.h = self.h - self.alpha / self.N * sum(models - self.x)
        self.x = np.mean(models) - self.h / self.alpha


class AdaBest(FedAvg):
    mu, beta = 0.02, 0.8

    def init(self):
        self.previous, self.last = self.x, {}

    def correct(self, dispatch, k, y, g):
        return g - self.rows.get(dispatch.client, 0.0)

    def finish(self, dispatch, y):
        i, t = dispatch.client, dispatch.round
        h = self.rows.get(i, 0.0)
        self.rows[i] = h / (t - self.last.get(i, 0)) + self.mu * (self.x - y)
        self.last[i] = t
        return (y,)

    def server_update(self, dispatches, p, models):
        average = p @ models
        h = self.beta * (self.previous - average)
        self.x, self.previous = average - h, average


class FedCM(FedAvg):
    alpha, M = 0.1, 0.0

    def correct(self, dispatch, k, y, g):
        return self.alpha * g + (1 - self.alpha) / (dispatch.eta * dispatch.steps) * self.M

    def server_update(self, dispatches, p, deltas):
        self.M = p @ deltas
        self.x = self.x - self.eta * self.M


class GHBM(FedAvg):
    beta, tau, nesterov = 0.9, 1, False

    def init(self):
        self.past = [self.x]  # theta^0, theta^1, ...

    def mom(self, dispatch, y):
        if len(self.past) <= self.tau:
            return 0.0
        return (self.past[-self.tau - 1] - self.past[-1]) / self.tau

    def move(self, dispatch, y):
        return y - self.beta / dispatch.steps * self.mom(dispatch, y) if self.nesterov else y

    def correct(self, dispatch, k, y, g):
        if self.nesterov:
            return g
        return g + self.beta / (dispatch.eta * dispatch.steps) * self.mom(dispatch, y)

    def server_update(self, dispatches, p, deltas):
        super().server_update(dispatches, p, deltas)
        self.past.append(self.x)


class FedADC(GHBM):
    nesterov = True


class LocalGHBM(GHBM):
    scale = "participation"

    def init(self):
        self.past, self.last = [], {}

    def mom(self, dispatch, y):
        if dispatch.client not in self.rows:
            return 0.0
        gap = dispatch.round - self.last[dispatch.client]
        factor = self.C if self.scale == "participation" else 1 / gap
        return factor * (self.rows[dispatch.client] - self.x)

    def finish(self, dispatch, y):
        self.rows[dispatch.client], self.last[dispatch.client] = self.x, dispatch.round
        return (self.x - y,)


class FedHBM(GHBM):
    beta, first, anchors = 1.0, "standard", ()

    def init(self):
        self.past, self.origin = [], self.x

    def mom(self, dispatch, y):
        i = dispatch.client
        absent = {"standard": lambda: y, "random": lambda: self.anchors[i]}
        anchor = self.rows[i] if i in self.rows else absent.get(self.first, lambda: self.origin)()
        return self.C * (anchor - y)

    def finish(self, dispatch, y):
        self.rows[dispatch.client] = y
        return (self.x - y,)


RULES = {
    name.lower(): rule
    for name, rule in list(vars().items())
    if isinstance(rule, type) and issubclass(rule, FedAvg) and rule is not FixedStatistics
}
