"""Stages: short wrappers of each kind against NumPy, their order, and a rule on the clock."""

import chex
import jax
import numpy as np
import pytest
import wrapper_examples as examples
from helpers import small_network
from wrapper_helpers import (
    ARRIVES,
    LOST,
    NETWORK_LOCAL,
    VECTORS,
    later,
    moves,
    one_example_each,
    sends,
    transfer_of,
    weighted,
)

import fedjax_algos as fa
from fedjax_algos.asynchrony import buffered, simulated
from fedjax_algos.core.randomness import permutation_words, permute
from fedjax_algos.wrappers import ClientStage, Rule, Sent, ServerStage, add, wrap
from fedjax_algos.wrappers.stages import CLIP

TOY = small_network()


def bad_clients(seed):
    """Which of seven clients are marked; they are 30% of them."""
    words = permutation_words(jax.random.fold_in(jax.random.key(seed), 1))
    return np.asarray(permute(words, np.arange(7), 7)) < 2


@pytest.mark.parametrize("layout", ["vmapped", *later("sequential", 2)])
def test_an_attack_and_two_defences_in_numpy(layout, x64):
    """With two lost updates, and then with none."""
    algorithm = examples.alie(sends(VECTORS), fraction=0.3, z=1.5)
    algorithm = examples.trimmed_mean(examples.nearest_mixing(algorithm, wrong=2), wrong=1)
    found, bad = moves(algorithm, 2, layout=layout, seed=3), bad_clients(3)
    for number, arrived in enumerate(ARRIVES[:2]):
        sent, honest = VECTORS[:, number].copy(), VECTORS[arrived & ~bad, number]
        sent[bad] = honest.mean(0) - 1.5 * honest.std(0)
        sent, mixed = sent[arrived], []
        for each in sent:
            order = np.argsort(((sent - each) ** 2).sum(1), kind="stable")
            mixed.append(sent[order[: len(sent) - 2]].mean(0))
        expected = np.sort(mixed, axis=0)[1:-1].mean(0)
        np.testing.assert_allclose(found[number], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("trimmed_mean", "nearest_mixing", r"give nearest_mixing\+trimmed_mean"),
        ("nearest_mixing", "alie", r"alie has to act before .*give alie\+nearest_mixing"),
        ("trimmed_mean", "trimmed_mean", "replaces all updates already; leave one"),
    ],
)
def test_another_order_is_refused(first, second, reason):
    wrapped = getattr(examples, first)(sends(VECTORS))
    with pytest.raises(ValueError, match=reason):
        getattr(examples, second)(wrapped)


def nothing(*read):
    return None


def stage(*arguments, **options):
    return {"client": [ClientStage("s", *arguments, **options)]}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            stage(lambda v, own, client: v),
            "stage s: its result=.* is not of type Sent; return Sent",
        ),
        (stage(lambda v, own, client: Sent(v[0])), r"stage s: undo made .*dict.*one tree for each"),
        (stage(lambda v, own, client: Sent(v), first=lambda v: v), r"stage s: Sent.own.*expected"),
        (stage(lambda v, own, client: Sent(v), place=CLIP) | {"needs": ["x"]}, "needs='x'"),
        ({"client": ClientStage("s", nothing)}, "client.*give a list of ClientStage"),
        ({"server": [ServerStage("s")]}, "s: one and all are .*; give one of the two"),
        ({"server": [ServerStage("s", all=nothing)]}, "s returned .*NoneType; return a pair"),
        (
            {"rule": Rule("s", lambda *read: read[0].vectors)},
            "s returned .*list; .*and its memory",
        ),
        (stage(lambda v, own, c: Sent(v, extra={"afl.loss": 0.0})), "name .*afl.loss.*rename it"),
    ],
)
def test_what_ones_own_stages_return_is_checked(wrong, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        moves(add("own", wrap(sends(VECTORS), "afl" * ("afl" in reason)), **wrong), 1)


def test_signs_of_marked_clients(x64):
    """Alone, the updates are changed when they arrive, and nothing is stacked."""
    algorithm = examples.sign_flip(sends(VECTORS), fraction=0.3)
    signs = np.where(bad_clients(0), -1, 1)[~LOST, None]
    assert algorithm.traits.reduce == "sum"
    np.testing.assert_allclose(moves(algorithm)[0], (signs * VECTORS[~LOST, 0]).mean(0), rtol=1e-12)


@pytest.mark.parametrize("before", ["", *later("topk:fraction=0.5")])
def test_whole_numbers_are_decoded_after_the_sum(before, x64):
    """An update with NaN, or one that is too long, is left out and counted."""
    vectors = VECTORS / 4
    vectors[1, 1, 2], vectors[3, 1, 0] = np.nan, 1.01
    coded = examples.modular_mean(wrap(sends(vectors), before))
    found, expected = moves(coded, 2), moves(wrap(sends(vectors), before), 2)[0]
    np.testing.assert_allclose(found[0], expected, atol=1 / 2**15)
    if not before:
        rest = vectors[[0, 2, 4, 5, 6], 1].mean(0)
        np.testing.assert_allclose(found[1], rest, atol=1 / 2**15)
    with pytest.raises(ValueError, match="bits=31 overflow a cohort of 7"):
        moves(examples.modular_mean(sends(vectors), bits=31))


def test_a_change_by_hand_stays_inside():
    """What is built upon a wrapped algorithm by hand is a new base."""
    wrapped = wrap(sends(VECTORS), "topk:fraction=0.5")

    def decode(message):
        return jax.tree.map(lambda v: 3 * v, wrapped.decode(message))

    tripled = wrap(wrapped._replace(decode=decode), "mean+identity")
    np.testing.assert_allclose(moves(tripled, 2), 3 * moves(wrapped, 2), rtol=1e-5)
    assert transfer_of(tripled, one_example_each(7)) == transfer_of(wrapped, one_example_each(7))
    with pytest.raises((TypeError, ValueError), match=r"contribute.*staleness, server\)"):
        fa.make_engine(weighted(wrapped, lambda client: 1.0))
    with pytest.raises(ValueError, match=r"identity: .* changed after .*; change .* first"):
        wrap(wrap(wrapped, "mean")._replace(decode=decode), "identity")


@pytest.mark.all
def test_a_mean_on_the_virtual_clock_is_the_algorithm():
    bare, models = fa.algorithms.fedbuff(TOY.problem, NETWORK_LOCAL), []
    for algorithm in (bare, wrap(bare, "mean")):
        executor = fa.make_executor(algorithm)
        planner = buffered(steps=2, size=2)
        result = fa.simulate_async(
            executor, TOY.data, planner, simulated(), seconds=50, evaluations=1
        )
        models.append(result.state.server.params)
    assert len(result.plan.time) >= 500
    chex.assert_trees_all_close(*models, rtol=2e-5, atol=1e-6)
