"""Implements `pack`, which writes the examples of a data set's clients into a folder."""

import contextlib
from pathlib import Path
from typing import Any

import click

from fedjax_algos.base.reprs import printable
from fedjax_algos.cli.options import check_path
from fedjax_algos.data import ClientDataset, Dataset, by_client, datasets, pack, partitions
from fedjax_algos.data.federated_data import as_dataset


def pack_clients(source: str, folder: str, **values: Any) -> None:
    """Packs a data set or the clients of a source; `values` are those of the partition."""
    check_path("folder", folder)
    dataset = as_dataset(datasets.make(source))
    if isinstance(dataset, Dataset):
        dataset = _partitioned(dataset, source, **values)
    elif name := next((name for name, value in values.items() if value is not None), None):
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


def _partitioned(
    dataset: Dataset, source: str, partition: str | None, clients: int | None, seed: int | None
) -> ClientDataset:
    """Divides a data set in memory over clients."""
    partition = partition or "natural"
    is_natural = partitions.parse(partition)[0] == "natural"
    users = dataset.users if is_natural else dataset.train["y"]
    if users is None or not (is_natural or clients):
        text = f"{source} has no clients with partition={partition} and clients={clients}; give "
        raise ValueError(f"{text}both, such as --partition dirichlet:alpha=0.1 --clients 100")
    number = clients or len(set(users.tolist()))
    return by_client(dataset, partitions.make(partition, users, number, seed or 0))
