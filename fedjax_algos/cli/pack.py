"""Implements `pack`, which writes the examples of a data set's clients into a folder."""

import contextlib
from pathlib import Path
from typing import Any

import click

from fedjax_algos.base.reprs import printable
from fedjax_algos.cli.options import check_path
from fedjax_algos.data import ClientDataset, Dataset, by_client, datasets, pack, partitions
from fedjax_algos.data.federated_data import as_dataset


def pack_clients(
    source: str, folder: str, partition: str | None, clients: int | None, seed: int | None
) -> None:
    """Packs a data set or the clients of a source."""
    check_path("folder", folder)
    dataset = as_dataset(datasets.make(source))
    given = {"partition": partition, "clients": clients, "seed": seed}
    if isinstance(dataset, Dataset):
        dataset = _divided(dataset, source, partition or "natural", clients, seed or 0)
    elif name := next((name for name, value in given.items() if value is not None), None):
        raise ValueError(f"{source} already has clients; leave --{name} out")
    from rich.console import Console

    from fedjax_algos.cli.progress import make_bars

    bars = make_bars(Console(stderr=True), "clients")
    tasks: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:

        def show(split: str, done: int, total: int) -> None:
            if not tasks:  # an earlier error then stays on one line
                stack.enter_context(bars)
            if split not in tasks:
                tasks[split] = bars.add_task(split, total=total)
            bars.update(tasks[split], completed=done)

        pack(dataset, folder, on_client=show)
        if not tasks:
            click.echo("all clients were in the folder already")
    for note in dataset.notes:
        click.echo(printable(note), err=True)
    click.echo(
        f"{dataset.train.num_clients} clients with {dataset.train.counts.sum()} training examples, "
        f"and {dataset.test.counts.sum()} test examples, in {printable(Path(folder))}"
    )


def _divided(
    dataset: Dataset, source: str, spec: str, clients: int | None, seed: int
) -> ClientDataset:
    """Divides a data set in memory over clients by a partition."""
    natural = partitions.parse(spec)[0] == "natural"
    users = dataset.users if natural else dataset.train["y"]
    what = f"{source} has no clients with partition={spec} and clients={clients}"
    fix = "give both, such as --partition dirichlet:alpha=0.1 --clients 100"
    if users is None or not (natural or clients):
        raise ValueError(f"{what}; {fix}")
    number = clients or len(set(users.tolist()))
    return by_client(dataset, partitions.make(spec, users, number, seed))
