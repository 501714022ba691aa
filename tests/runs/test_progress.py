"""The bar of a run: in a terminal, in a notebook, and as lines of a log."""

import builtins
import sys
import types

import jax.numpy as jnp
import pytest
from helpers import small_network

import fedjax_algos as fa

TOY = small_network()
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
ENGINE = fa.make_engine(fa.algorithms.fedavg(TOY.problem, LOCAL))


def run(**options):
    return fa.simulate(ENGINE, TOY.data, rounds=4, eval_every=2, cohort_size=2, **options)[1]


def test_nothing_is_shown_by_default(capsys):
    run()
    assert capsys.readouterr() == ("", "")
    with pytest.raises(TypeError, match=r"progress=1 is not of type bool; give True or False"):
        run(progress=1)


def test_a_log_has_a_line_for_each_evaluation(capsys):
    """A second piece begins where the first ended."""
    state, _ = fa.simulate(ENGINE, TOY.data, rounds=4, cohort_size=2)
    run(progress=True, state=state, start_round=4)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"{done} of 8 rounds" for done in (4, 6, 8)]
    rows = run(progress=True)
    out, err = capsys.readouterr()
    losses = [f", train loss {row['train_loss']:.4g}" if row["round"] else "" for row in rows]
    assert err.splitlines() == [
        f"{done} of 4 rounds{loss}" for done, loss in zip((0, 2, 4), losses, strict=True)
    ]
    assert out == ""


def test_a_terminal_has_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    run(progress=True)
    err = capsys.readouterr().err
    assert all(text in err for text in ("4/4", "rounds, train loss", "━━━"))
    assert "of 4 rounds" not in err


def test_a_notebook_has_a_bar_without_widgets(capsys, monkeypatch, recwarn):
    shown = []

    class Handle:
        def update(self, bar):
            shown.append(bar._repr_mimebundle_((), ())["text/plain"])

    def display(bar, display_id):
        assert display_id
        return Handle()

    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    module = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    run(progress=True)
    assert [text.split("/4")[0][-1] for text in shown] == ["0", "2", "4"]
    assert "train loss" in shown[-1]
    assert capsys.readouterr() == ("", "")
    assert not recwarn.list


def test_an_asynchronous_run_counts_simulated_seconds(capsys):
    executor = fa.make_executor(fa.algorithms.fedbuff(TOY.problem, LOCAL))
    planner, system = fa.asynchrony.buffered(steps=2, size=2), fa.asynchrony.simulated()
    options = {"seconds": 10, "evaluations": 2, "progress": True}
    fa.simulate_async(executor, TOY.data, planner, system, **options)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"{now} of 10 simulated seconds" for now in (0, 5, 10)
    ]
    assert jnp.isfinite(float(lines[-1].rsplit(" ", 1)[1]))
