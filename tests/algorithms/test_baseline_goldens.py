"""Baselines on two quadratics in three dimensions, to 12 printed digits, and their terms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import dispatches_of
from naive_rounds import Naive

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.algorithms.averaging.feddecorr import decorrelation
from fedjax_algos.algorithms.averaging.feddisco import disco_weights, discrepancy
from fedjax_algos.algorithms.averaging.fedlc import calibrated_loss
from fedjax_algos.algorithms.averaging.fedntd import not_true_distillation
from fedjax_algos.algorithms.averaging.moon import contrast
from fedjax_algos.algorithms.local_optimizers.fedmuon import orthogonalised
from fedjax_algos.asynchrony import FixedSystem, planners

pytestmark = pytest.mark.usefixtures("x64")

A = [[[2, 0.5, 0], [0.5, 1, 0.25], [0, 0.25, 0.5]], [[1, 0, -0.5], [0, 3, 0.5], [-0.5, 0.5, 1.5]]]
B, START = [[1, -1, 0.5], [-1, 2, 0]], [0.5, -0.5, 1]
MATRICES = [[[2, 0.5], [0.5, 1]], [[1, -0.3], [-0.3, 3]]]
TARGETS = [[[1, -1, 0.5], [0, 0.5, -0.5]], [[-1, 2, 0], [1, 0, 0.25]]]
FIRST = [[0.5, -0.5, 1], [0.25, 0.75, -1]]
BOTH, PARTIAL = ((0, 1), (0, 1)), ((0,), (1,))


def example(split):
    """`f_i(y) = (y - b_i)^T A_i (y - b_i) / 2`; y is one array, two arrays, or a matrix."""
    a, b, start = (MATRICES, TARGETS, FIRST) if split == "matrix" else (A, B, START)
    examples = {"a": np.array(a, float), "b": np.array(b, float)}

    def init(key):
        y = jnp.array(start, float)
        return fa.Model({"x": y[:2], "z": y[2:]} if split == "two" else {"x": y})

    def apply(model, batch, key, training):
        y = jnp.concatenate([*model.params.values()])
        gap = y[None] - batch["b"]
        return (gap * jnp.einsum("bij,bj...->bi...", batch["a"], gap)).reshape(len(gap), -1), ()

    problem = fa.Problem(init, apply, lambda terms, batch: terms.sum(1) / 2)
    return problem, fa.federate(examples, fa.Partition.of([[0], [1]]))


@functools.cache
def history(spec, split="one", sets=BOTH, rate=0.1, optimizer="sgd"):
    """The server states after each round."""
    problem, data = example(split)
    named = isinstance(optimizer, str)
    transform = fa.core.client_optimizer(optimizer) if named else optimizer
    local = fa.Local(1, rate, steps=2, batches="full", transform=transform)
    naive = Naive(algorithms.make(spec, problem, local))
    dispatches = dispatches_of(data, local, sets)
    population = fa.Population(2, len(sets[0]), 2)
    return naive.rounds(data, dispatches, population)


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


TABLE = """
fedavg:weighting=uniform | 1 | .474687500000 .056718750000 .990156250000
fedavg:weighting=uniform | 2 | .431479394531 .421868212891 .946560302734
fedsam:rho=.1 | 1 | .485306500856 .079982046378 .991970129919
fedsam:rho=.1 | 2 | .440374266349 .454396916273 .947728132499
mofedsam:rho=.1,alpha=.1 | 1 | .498731661495 -.431967375086 1.001373760026
mofedsam:rho=.1,alpha=.1 | 2 | .495810726490 -.306123583386 1.003294651322
fedgamma:rho=.1 | 2 | .434749628340 .489790644392 .956222604231
fedspeed:rho=.1,alpha=1,lambda_=10 | 1 | .470737748451 .653049527076 .983778870627
fedspeed:rho=.1,alpha=1,lambda_=10 | 2 | .313925038012 1.555463913592 .818516285226
fedspeed:rho=.1,alpha=1,lambda_=10,duals=all | 2 | .313925038012 1.555463913592 .818516285226
fedspeed:rho=.1,alpha=.9,normalised=false | 2 | .273580198143 1.751646827184 .837427112039
fedlesam:rho=.1 | 1 | .474687500000 .056718750000 .990156250000
fedlesam:rho=.1 | 2 | .434690054915 .456237763672 .952615802942
fedsmoo:rho=.1,lambda_=10 | 1 | .470507568230 .652883226585 .983711305878
fedsmoo:rho=.1,lambda_=10 | 2 | .309317384223 1.553652371375 .818688157484
diloco | 1 | .498385309008 -.497992128886 .993666321071
diloco | 2 | .495944742111 -.494830672831 .982830552722
diloco:state=fresh | 2 | .496089190577 -.495132324527 .984802943605
fedavgm:nesterov=true,server_learning_rate=.7 | 1 | .466334375000 .240435937500 .986907812500
fedavgm:nesterov=true,server_learning_rate=.7 | 2 | .386661025986 .957664494282 .908529957007
fedadamw:moments=entry | 1 | .498785946623 -.498490322471 .995237835392
fedadamw:moments=entry | 2 | .479341480100 -.387701457104 .998847855250
fedlada | 1 | .499985691838 -.499962002515 .999874871154
fedlada | 2 | .496013835987 -.473826282077 1.003295557531
fedacg:lambda_=.85,beta=.01 | 1 | .474700000000 .056387500000 .990150000000
fedacg:lambda_=.85,beta=.01 | 2 | .394827293516 .731717668305 .909564961711
fedexp:averaged=false | 2 | .386675134999 .750296825905 .899054917052
fedexp | 2 | .428338206323 .455041770184 .943694373624
fedala:first_passes=1 | 2 | .440172504992 .428384354319 .928855017411
"""
OTHER = """
fedgamma:rho=.1 | one | partial | 1 | .661153858478 -.577699524144 .921520295377
fedgamma:rho=.1 | one | partial | 2 | .508445355301 .672994991957 .993367571522
fedspeed:rho=.1,alpha=1 | one | partial | 2 | .292781391449 1.984272341997 1.135699781602
fedspeed:duals=all | one | partial | 2 | .452561205031 1.291176812765 1.031266389694
fedlesam:rho=.1 | one | third | 3 | .491592614858 .390426341964 .894986541151
fedadamw | two | both | 2 | .488804476876 -.377083783680 1.000446556877
fedper:head=z | two | both | 2 | .434167968750 .420894091797 1
lgfedavg:head=z | two | both | 2 | .5 -.5 .929710009766
fedbabu:head=z | two | both | 2 | .430452734375 .421700781250 1
"""
SETS = {"both": BOTH, "partial": PARTIAL, "third": ((0,), (1,), (0,))}


def lines(table, columns):
    rows = [tuple(map(str.strip, line.split("|"))) for line in table.strip().splitlines()]
    return [pytest.param(*row, id="-".join(row[:columns])) for row in rows]


def numbers(text):
    return np.array([*map(float, text.split())])


close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("spec", "step", "expected"), lines(TABLE, 2))
def test_models(spec, step, expected):
    close(flat(history(spec)[int(step) - 1].server.params), numbers(expected))


@pytest.mark.parametrize(("spec", "split", "cohorts", "step", "expected"), lines(OTHER, 4))
def test_models_of_two_arrays_and_of_partial_cohorts(spec, split, cohorts, step, expected):
    after = history(spec, split, SETS[cohorts])[int(step) - 1]
    close(flat(after.server.params), numbers(expected))


@pytest.mark.parametrize(
    ("spec", "optimizer", "rate", "expected"),
    [
        pytest.param(*row, id=row[0])
        for row in (
            (
                "fedavg:weighting=uniform",
                "muon",
                0.05,
                ".521050702772 -.454604223674 .997605039267 "
                ".258776281869 .672548447434 -.840443518377",
            ),
            (
                "fedmuon:alpha=1",
                "sgd",
                0.05,
                ".513511264740 -.473992267066 .980500050930 "
                ".271946543636 .692394825470 -.898005595559",
            ),
        )
    ],
)
def test_matrices(spec, optimizer, rate, expected):
    after = history(spec, "matrix", BOTH, rate, optimizer)[1]
    close(flat(after.server.params), numbers(expected))


def test_kernels_of_convolutions_are_matrices():
    """Of one column for each output channel; the singular values are near sqrt(out / in) or 1."""
    kernel = jax.random.normal(jax.random.key(0), (2, 2, 3, 30))
    flat = kernel.reshape(12, 30)
    close(orthogonalised(kernel).reshape(12, 30), orthogonalised(flat))
    close(orthogonalised(flat.T), orthogonalised(flat).T * (12 / 30) ** 0.5)
    values = np.linalg.svd(orthogonalised(flat.T), compute_uv=False)
    assert 0.6 < values.min() < values.max() < 1.3


def test_decay_before_clipping_is_fednar():
    transform = optax.chain(optax.add_decayed_weights(0.01), optax.clip_by_global_norm(2.0))
    after = history("fedavg:weighting=uniform", optimizer=transform)[1]
    close(flat(after.server.params), [0.560141619596, -0.194927950596, 0.948321263812])


def test_states():
    second = history("fedsmoo:rho=.1,lambda_=10")[1]
    close(flat(second.server.perturbation), [0.084760101725, 0.052919923796, -0.003899592421])
    close(second.clients.dual["x"][0], [-0.030345371444, 0.394086127208, 0.069754228623])
    control = flat(history("fedgamma:rho=.1")[1].server.control)
    close(control, [0.252784362580, -2.049042990069, 0.178737628443])
    moments = flat(history("fedadamw:moments=entry")[1].server.moments)
    close(moments, [0.002606094033, 0.092752921286, 0.000540965391])
    rows = np.stack([flat(row) for row in history("fedala:first_passes=1")[1].clients.weights])
    close(rows.reshape(2, 3)[0], [0.915295043945, 0.421824920654, 0.968250958252])
    rows = flat(history("fedper:head=z", "two")[1].clients.params)
    close(rows, [0.836838281250, 1.045333203125])


CLOCK = """
ca2fl | buffered:steps=2,size=2 | 1.4 | 1 | .474687500000 .056718750000 .990156250000
ca2fl | buffered:steps=2,size=2 | 1.4 | 2 | .450621484375 .472583203125 .958973437500
ca2fl | buffered:steps=2,size=2 | 1.4 | 3 | .394021450684 .800619239380 .907256000977
fedbuff:weighting=buffer,exponent=0,alpha=1 | buffered:steps=2,size=2 | 1.4 | 3 | \
.535820376465 .259977296021 .853838178711
fadas:server_learning_rate=.05,debias=false | buffered:steps=2,size=2 | 5.5 | 1 | \
.549999963470 -.549999932490 .950000069264
fadas:server_learning_rate=.05 | buffered:steps=2,size=2 | 5.5 | 3 | \
.615358479488 -.587476591490 .880564014772
fadas:server_learning_rate=.05,debias=false | buffered:steps=2,size=2 | 5.5 | 3 | \
.641156465753 -.597681528781 .852371918445
ace | immediate:steps=2 | 1.4 | 2 | .543125000000 .019687500000 .954062500000
ace | immediate:steps=2 | 1.4 | 4 | .464433789062 1.005752832031 .927677636719
asyncsgd | immediate:steps=2 | 1.4 | 4 | .361008203125 1.169002539063 .885858398438
"""


@pytest.mark.parametrize(
    ("spec", "planner", "seconds", "step", "expected"), lines(CLOCK.replace("\\\n", ""), 4)
)
def test_models_on_the_clock(spec, planner, seconds, step, expected):
    """A dispatch of the first client takes 1 second, of the second one `seconds`."""
    problem, data = example("one")
    naive = Naive(algorithms.make(spec, problem, fa.Local(1, 0.1, steps=2, batches="full")))
    system = FixedSystem([0.5, float(seconds) / 2])
    plan = planners.make(planner)(system, 2, seconds=6)
    steps = [*naive.on_the_clock(data, plan, fa.Population(2, 2, 2))]
    close(flat(steps[int(step) - 1].server.params), numbers(expected))


LOGITS, TEACHER = np.array([[1, -0.5, 0.25, 2.0]]), np.array([[0.5, 0.5, -1, 1.0]])


def test_moon():
    z, received, last = ([[1, -0.5, 2.0]], [[0.5, 0.25, 1.0]], [[-1, 0.5, 0.75]])
    value, slope = jax.value_and_grad(
        lambda z: contrast(z, jnp.array(received), jnp.array(last), 0.5)[0]
    )(jnp.array(z))
    close(value, 0.176088025039)
    close(slope[0], [-0.115522913679, -0.003745527082, 0.056825075069])


@pytest.mark.parametrize(
    ("tau", "value", "slope"),
    [
        (1, 0.032578366392, "-.109580869644 0 .035023625560 .074557244084"),
        (3, 0.043408285539, "-.131025663154 0 .083333926821 .047691736333"),
    ],
)
def test_fedntd(tau, value, slope):
    found, gradient = jax.value_and_grad(
        lambda logits: not_true_distillation(logits, TEACHER, jnp.array([1]), tau)[0]
    )(jnp.asarray(LOGITS))
    close(found, value)
    close(gradient[0], numbers(slope))


def test_fedlc_feddecorr_and_feddisco():
    counts = jnp.array([16, 1, 0, 81.0])
    for tau, value in ((1, 1.469395270736), (0.5, 1.417862180474)):
        close(calibrated_loss(jnp.asarray(LOGITS), jnp.array([0]), counts, tau), [value])
    rows = jnp.array([[1, 2, 0.5], [0, 1, -1], [9, 9, 9], [2, 0.5, 1.5], [-1, 0, 0.25]])
    close(decorrelation(rows, jnp.array([1, 1, 0, 1, 1], bool)), 0.445777613948)
    close(decorrelation(rows, jnp.array([0, 1, 0, 0, 0], bool)), 0)
    sizes, distances = jnp.array([10, 30, 0, 60.0]), jnp.array([0.5, 0.3, 7, 0.2])
    for a, expected in ((0.5, (0.294117647059, 0.705882352941)), (1, (1 / 6, 5 / 6))):
        close(disco_weights(sizes, distances, a, 0.1), [0, expected[0], 0, expected[1]])
    close(disco_weights(sizes, distances, 100, 0.1), sizes / 100)
    close(
        discrepancy(jnp.array([3, 1, 0, 0.0])), np.log(4) + 0.75 * np.log(0.75) - 0.25 * np.log(4)
    )
