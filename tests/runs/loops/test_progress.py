"""The bar of a run: in a terminal, in a notebook, and as lines of a log."""

import builtins
import math
import sys
from unittest import mock

import pytest
from sweep_helpers import QUADRATICS, clock_executor, rounds_engine, run_rounds

import fedjax_algos as fa


def run(**options):
    return run_rounds(rounds_engine(), rounds=4, test=None, **options)


def told(capsys):
    """What the lines of the log say before their first comma."""
    return [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]


def test_nothing_is_shown_by_default(capsys):
    run()
    assert capsys.readouterr() == ("", "")
    with pytest.raises(TypeError, match="progress=1"):
        run(progress=1)


def test_a_log_has_a_line_for_each_evaluation(capsys):
    """A second piece begins where the first ended."""
    state, _ = run()
    run(progress=True, state=state, start_round=4)
    assert told(capsys) == [f"{done} of 8 rounds" for done in (4, 6, 8)]
    _, rows = run(progress=True)
    out, err = capsys.readouterr()
    losses = ["", *(f", train loss {row['train_loss']:.4g}" for row in rows[1:])]
    expected = zip((0, 2, 4), losses, strict=True)
    assert err.splitlines() == [f"{done} of 4 rounds{loss}" for done, loss in expected]
    assert out == ""


def test_a_terminal_has_a_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    run(progress=True)
    err = capsys.readouterr().err
    assert all(text in err for text in ("4/4", "rounds, train loss", "━━━"))
    assert "of 4 rounds" not in err


def test_a_notebook_has_a_bar_without_widgets(capsys, monkeypatch, recwarn):
    shown, module = [], mock.Mock()
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", mock.Mock())
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    update = module.display.return_value.update
    update.side_effect = lambda bar: shown.append(bar._repr_mimebundle_((), ())["text/plain"])
    run(progress=True)
    assert module.display.call_args.kwargs["display_id"]
    assert [text.split("/4")[0][-1] for text in shown] == ["0", "2", "4"]
    assert "train loss" in shown[-1]
    assert capsys.readouterr() == ("", "")
    assert not recwarn.list


@pytest.mark.all
def test_an_asynchronous_run_counts_simulated_seconds(capsys):
    planner, system = fa.asynchrony.immediate(steps=2), fa.asynchrony.simulated()
    options = {"seconds": 10, "evaluations": 2, "progress": True}
    rows = fa.simulate_async(clock_executor(), QUADRATICS.data, planner, system, **options).rows
    assert told(capsys) == [f"{now} of 10 simulated seconds" for now in (0, 5, 10)]
    assert math.isfinite(rows[-1]["train_loss"])
