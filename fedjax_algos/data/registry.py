"""The registry of data sets, in a module that all readers can import."""

from typing import TypeAlias

from fedjax_algos.core.registry import Registry
from fedjax_algos.data.client_source import ClientDataset
from fedjax_algos.data.dataset import Dataset

AnyDataset: TypeAlias = Dataset | ClientDataset

datasets = Registry[AnyDataset]("dataset", AnyDataset)
