"""The examples of a run: those of each client, those that are held out, and those of the test."""

import numpy as np

from fedjax_algos.core import Batch
from fedjax_algos.data import (
    AnyDataset,
    ClientDataset,
    Dataset,
    FederatedData,
    Partition,
    StoredData,
    federate,
    hold_out,
    partitions,
)
from fedjax_algos.data.stored import choose_clients, load_test
from fedjax_algos.runs.settings import Settings


def keeps_in_files(settings: Settings, dataset: AnyDataset) -> bool:
    """Whether the examples of a data set stay in files: those of its own clients may.

    Args:
      settings: of the runs.
      dataset: what `load` returned.
    """
    natural = partitions.parse(settings.partition)[0] == "natural"
    return isinstance(dataset, ClientDataset) and natural and settings.evaluate_clients == "none"


def load_test_examples(settings: Settings, dataset: AnyDataset) -> Batch:
    """The test examples, at most `test_examples` of them.

    Args:
      settings: of the runs.
      dataset: what `load` returned.
    """
    if isinstance(dataset, ClientDataset):
        return load_test(dataset, settings.test_examples)
    total = len(dataset.test["x"])
    if settings.test_examples is None or settings.test_examples >= total:
        return dataset.test
    rows = np.random.default_rng(0).choice(total, settings.test_examples, replace=False)
    return {name: leaf[np.sort(rows)] for name, leaf in dataset.test.items()}


def split(
    settings: Settings, dataset: AnyDataset, seed: int
) -> tuple[FederatedData | StoredData, Partition | None]:
    """Divides a data set's training examples over the clients.

    Args:
      settings: of the runs.
      dataset: what is divided.
      seed: of the partition.

    Returns:
      The clients' examples and their partition, without those that are held out. Of a data set
      whose examples stay in files, the chosen clients, and None.

    Raises:
      ValueError: for partition "natural" of a data set without users.
    """
    if isinstance(dataset, ClientDataset):
        options = partitions.parse(settings.partition)[1]
        chosen = choose_clients(dataset.train.counts, settings.clients, seed, **options)
        return StoredData(dataset.train, chosen), None
    partition = _partition(settings, dataset, seed)
    if settings.evaluate_clients == "held_out":
        partition, _ = hold_out(partition, settings.held_out, seed)
    return federate(dataset.train, partition), partition


def split_held_out(settings: Settings, dataset: Dataset, seed: int) -> FederatedData:
    """The examples of each client that `split` holds out.

    Args:
      settings: of the runs.
      dataset: what is divided.
      seed: of the partition.

    Raises:
      ValueError: if no client has so many examples that it holds one out.
    """
    _, partition = hold_out(_partition(settings, dataset, seed), settings.held_out, seed)
    if not partition.indices.size:
        raise ValueError(
            f"held_out={settings.held_out:g} of the examples of each of the {settings.clients} "
            "clients is less than one; give a larger share or fewer clients"
        )
    return federate(dataset.train, partition, allow_empty=True)


def _partition(settings: Settings, dataset: Dataset, seed: int) -> Partition:
    natural = partitions.parse(settings.partition)[0] == "natural"
    source = dataset.users if natural else np.asarray(dataset.train["y"])
    if source is None:
        raise ValueError(
            f"partition={settings.partition!r} needs a data set with clients of its own, which "
            f"{settings.dataset!r} is not; choose another partition"
        )
    try:
        return partitions.make(settings.partition, source, settings.clients, seed)
    except ValueError as error:
        if natural or dataset.users is None:
            raise
        own = len(np.unique(dataset.users))
        raise ValueError(
            f"{error}; or give partition='natural' for the {own} clients of the data set"
        ) from error
