"""The registry of data sets, in a module that all readers can import.

A factory of the user's own may also return a `ClientSource`.
"""

from typing import TypeAlias

from fedjax_algos.core.registry import Registry
from fedjax_algos.data.dataset import Dataset
from fedjax_algos.data.federated_data import ClientDataset, ClientSource

AnyDataset: TypeAlias = Dataset | ClientDataset

datasets = Registry[AnyDataset]("dataset", AnyDataset | ClientSource)


def as_dataset(given: AnyDataset | ClientSource) -> AnyDataset:
    """A data set; a source alone gets its own examples as test examples, and a note."""
    if not isinstance(given, ClientSource):
        return given
    note = f"{given.name} has no test examples: quality is measured on its training examples"
    return ClientDataset(given, given, notes=(note,))
