"""Implements `pack`, which writes the examples of a data set's clients into a folder."""

import contextlib
from pathlib import Path

import click
from rich.console import Console
from rich.progress import TaskID

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import printable
from fedjax_algos.cli.options import check_path
from fedjax_algos.cli.progress import make_bars
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
    console = Console(stderr=True)
    bars = make_bars(console, "clients")
    with contextlib.ExitStack() as stack:
        tasks: dict[str, TaskID] = {}

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
        console.print(printable(note), markup=False, highlight=False, soft_wrap=True)
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
    fix = "give --partition and --clients, such as --partition dirichlet:alpha=0.1 --clients 100"
    if users is None:
        raise ValueError(f"{source} has no clients; {fix}")
    fix = "needs a number of clients; give --clients"
    require(clients is not None or natural, f"partition={spec} {fix}")
    number = clients or len(set(users.tolist()))
    return by_client(dataset, partitions.make(spec, users, number, seed))
