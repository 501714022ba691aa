"""The metrics of each client's own model at the end of a run, and their summary."""

import numpy as np

from fedjax_algos.analysis.evaluation import ClientSummary, summarise_clients
from fedjax_algos.core import Mean, Metrics, Row


def client_rows(label: str, seed: int, round_number: int, metrics: Metrics) -> list[Row]:
    """One row for each client.

    Args:
      label: of the method.
      seed: of the run.
      round_number: the last one.
      metrics: of `make_evaluate_own`, for each client. Where a client has weight 0, such as one
        without examples, the value is NaN.
    """
    weights = np.asarray(metrics["loss"].weight)
    means = {name: mean.over_classes() for name, mean in metrics.items()}
    values = {
        name: np.where(np.asarray(mean.weight) > 0, np.asarray(mean.value()), np.nan)
        for name, mean in means.items()
    }
    return [
        {
            "method": label,
            "seed": seed,
            "round": round_number,
            "client": client,
            "examples": int(count),
            **{name: float(each[client]) for name, each in values.items()},
        }
        for client, count in enumerate(weights)
    ]


def summarise_client_rows(rows: list[Row]) -> dict[str, ClientSummary]:
    """The distribution of the accuracy over clients, by method: the mean of that of each seed.

    Args:
      rows: of `client_rows`, of all methods and seeds.
    """
    groups: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        groups.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    return {
        label: ClientSummary(*np.mean([_summary(own) for own in by_seed.values()], axis=0).tolist())
        for label, by_seed in groups.items()
    }


def _summary(rows):
    counts = np.array([row["examples"] for row in rows], float)
    values = np.array([row["accuracy"] for row in rows], float)
    return summarise_clients(Mean(np.where(counts > 0, counts * values, 0), counts), "lowest")
