"""The bytes that algorithms send, and those that they need on a client."""

import optax
import pytest
from cost_helpers import SCALARS, build, dispatches_of, flop_counter, state_of, wide

import fedjax_algos as fa
from fedjax_algos.analysis import count_flops, count_memory

# Bytes down and up relative to FedAvg's; of GHBM after tau rounds; the paper has 3 for MimeMom
RATIOS = [
    ("fedprox", {}, 1),
    ("fedmax", {}, 1),
    ("fedavgm", {}, 1),
    ("feddyn", {}, 1),
    ("adabest", {}, 1),
    ("fednova", {}, 1),
    ("fedlga", {}, 1),
    ("localghbm", {}, 1),
    ("fedhbm", {}, 1),
    ("ghbm", {}, 1.5),
    ("fedadc", {}, 1.5),
    ("fedcm", {}, 1.5),
    ("fedgbo", {"optimizer": "sgdm"}, 1.5),
    ("fedgbo", {"optimizer": "rmsprop"}, 1.5),
    ("fedgbo", {"optimizer": "adam"}, 2),
    ("scaffold", {}, 2),
    ("mimelite", {"optimizer": "sgdm"}, 2),
    ("mimelite", {"optimizer": "adam"}, 2.5),
    ("mimexlite", {"optimizer": "sgdm"}, 2),
    ("mimelitemom", {}, 2),
    ("mfl", {"optimizer": "sgdm"}, 2),
    ("mfl", {"optimizer": "adam"}, 3),
    ("mime", {}, 2),
    ("mimemom", {}, 2.5),
]


@pytest.mark.parametrize(("name", "hyperparameters", "expected"), RATIOS)
def test_bytes_over_fedavg(name, hyperparameters, expected):
    problem, size, data = wide()
    algorithm = build(name, problem, **hyperparameters)
    transfer = fa.make_engine(algorithm).transfer
    sent = transfer(state_of(algorithm, data), data, dispatches_of([3], [100]))
    scalars = sum(sent) - expected * 2 * 4 * size
    assert 0 <= scalars <= 4 * 4


# In models: kept between rounds; in a round with the broadcast, y_i and all else that changes; and
# what training changes and reads, which for methods of the FedGBO paper is its Table I
MEMORY = [
    ("fedavg", {}, 0, 2, 1),
    ("fedprox", {}, 0, 2, 2),
    ("fedavgm", {}, 0, 2, 1),
    ("fedgbo", {"optimizer": "sgdm"}, 0, 3, 2),
    ("fedgbo", {"optimizer": "adam"}, 0, 4, 3),
    ("mfl", {"optimizer": "sgdm"}, 0, 4, 2),
    ("mfl", {"optimizer": "adam"}, 0, 6, 3),
    ("mimelite", {"optimizer": "sgdm"}, 0, 4, 3),
    ("mimelite", {"optimizer": "adam"}, 0, 5, 4),
    ("mimexlite", {"optimizer": "sgdm"}, 0, 3, 2),
    ("mime", {}, 0, 3, 3),
    ("mimemom", {}, 0, 4, 4),
    ("scaffold", {}, 1, 4, 2),
    ("feddyn", {}, 1, 3, 3),
    ("adabest", {}, 1, 3, 2),
    ("fedcm", {}, 0, 3, 2),
    ("ghbm", {}, 0, 3, 2),
    ("localghbm", {}, 1, 3, 2),
    ("fedhbm", {}, 1, 3, 2),
    ("fedlga", {}, 0, 2, 1),
    ("ifca", {"clusters": 3}, 0, 4, 4),  # it reads all models, and changes one
]


@pytest.mark.parametrize(
    ("name", "hyperparameters", "between_rounds", "in_round", "in_training"), MEMORY
)
def test_client_memory(name, hyperparameters, between_rounds, in_round, in_training):
    problem, size, data = wide()
    algorithm = build(name, problem, **hyperparameters)
    memory = count_memory(algorithm, state_of(algorithm, data), data)
    for found, expected in zip(memory, (between_rounds, in_round, in_training), strict=True):
        assert 0 <= found - expected * 4 * size <= 4 * 10


def test_the_local_transform_needs_operations_and_memory():
    problem, size, data = wide()
    local = fa.Local(8, 0.1, steps=3, transform=optax.scale_by_adam())
    algorithm = build("fedavg", problem, local)
    state = state_of(algorithm, data)
    assert count_memory(algorithm, state, data).in_round == pytest.approx(4 * 4 * size, abs=40)
    (loop,) = count_flops(algorithm, state, data).loops
    extra = loop.body.fixed - flop_counter("fedavg").loops[0].body.fixed
    assert extra == pytest.approx(13 * size, abs=SCALARS)  # 3 + 4 moments, 2 biases, 4 the quotient
