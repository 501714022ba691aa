"""Holds clients' examples: all on the device, or in files that are read one client at a time."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import FileError, require
from fedjax_algos.base.limits import check_device_memory, check_int32
from fedjax_algos.base.reprs import describe, describe_tree, printable
from fedjax_algos.core import Batch, ClientData, Statistics
from fedjax_algos.core.checks import check_kind
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.core.types import Array
from fedjax_algos.data.dataset import Dataset, check_range
from fedjax_algos.data.images import ImageFormat, decode_image
from fedjax_algos.data.partitioning.base import Partition, describe_counts


class FederatedData(NamedTuple):
    """The examples of all clients, without padding.

    The memory is the examples plus 4 bytes for each index, however unequal the clients are.

    Attributes:
      examples: leaves [total, ...], in their original dtypes.
      indices: int32[assigned]: row numbers of `examples`, one client after another.
      offsets: int32[num_clients + 1]: where each client's part of `indices` starts, and the end.
    """

    examples: Batch
    indices: jax.Array
    offsets: jax.Array

    @property
    def num_clients(self) -> int:
        """N, the number of clients."""
        return self.offsets.shape[0] - 1

    def counts(self) -> np.ndarray:
        """Returns int32[num_clients], on the host: n_i, each client's number of examples."""
        return np.diff(np.asarray(self.offsets))

    def __repr__(self) -> str:
        if not all(hasattr(leaf, "shape") for leaf in jax.tree.leaves(tuple(self))):
            return describe(self, leaves=describe_tree(self._asdict()))  # such as shardings
        facts: dict[str, Any] = {"clients": self.num_clients, "examples": self.indices.shape[0]}
        if is_readable(self.offsets):
            facts |= {"per_client": describe_counts(self.counts())}
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.examples)
        return describe(self, **facts, each=f"({describe_tree(one)})")


def is_readable(array: object) -> bool:
    """Returns True if the host can read an array's values without tracing or gathering."""
    if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
        return array.is_fully_replicated and not array.is_deleted()
    return isinstance(array, np.ndarray)


def client_view(
    data: FederatedData,
    client: Array,
    order: jax.Array,
    statistics: Statistics = (),
    first_step: Array | int = 0,
    frozen: Any = (),
) -> ClientData:
    """Returns a client's view of the store; `order` is uint32[20]. An empty slot is not read."""
    offset, end = data.offsets[client], data.offsets[client + 1]
    count = jnp.maximum(end - offset, 1)  # an empty slot must not divide by 0
    view = data.examples, data.indices, offset, count, order
    return ClientData(*view, statistics, first_step, frozen)


def check_examples(name: str, examples: Batch) -> int:
    """Returns the length of a tree of arrays [total, ...]; raises ValueError for other trees."""
    leaves = jax.tree_util.tree_leaves_with_path(examples)
    arrays = [leaf for _, leaf in leaves if isinstance(leaf, Array) and leaf.ndim]
    numbers = all(isinstance(each, jax.Array) or each.dtype.kind not in "OSUMm" for each in arrays)
    lengths = {len(leaf) for leaf in arrays}
    fix = "give a tree of arrays [examples, ...] of one length, such as {'x': ..., 'y': ...}"
    are_arrays = len(arrays) == len(leaves) and numbers and len(lengths) == 1
    require(are_arrays, f"{name} hold {describe_tree(examples)}; {fix}")
    total = lengths.pop()
    for path, leaf in leaves:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iuf" and leaf.dtype.itemsize == 8:
            check_range(leaf, f"{name}{jax.tree_util.keystr(path)}", finite=False)
    check_int32(f"the number of {name}", total, "give fewer")
    return total


def federate(examples: Batch, partition: Partition, *, allow_empty: bool = False) -> FederatedData:
    """Checks that a partition fits the examples, and puts both on the default device.

    Args:
      examples: a tree of arrays [total, ...]. Dtypes are kept, but 64 bits become 32 unless x64 is
        enabled, as everywhere in JAX.
      partition: the rows of each client. A row may belong to no client or to several.
      allow_empty: whether clients may hold no example, as in held-out data; such data cannot train.

    Raises:
      TypeError: for a partition of another type.
      ValueError: for leaves that are not arrays of numbers, or of unequal length; for 64-bit
        numbers that 32 bits cannot hold (NaN and infinity are kept); for examples that do not fit
        into memory; for rows out of range; for a client without examples.
    """
    total = check_examples("examples", examples)
    check_kind("partition", partition, Partition, "give Partition.of(rows of each client)")
    indices, offsets = (np.asarray(part) for part in partition)
    whole = not len(indices) or {indices.dtype.kind, offsets.dtype.kind} <= set("iu")
    fits = whole and len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == len(indices)
    found = f"the partition has {describe_tree(partition._asdict())}"
    fix = "give Partition.of(rows of each client), whose offsets ascend to the number of indices"
    require(fits and np.diff(offsets).min() >= 0, f"{found}; {fix}")
    outside = next(iter(indices[(indices < 0) | (indices >= total)]), None)
    require(outside is None, f"the partition names example {outside}; give 0 to {total - 1}")
    empty = np.flatnonzero(np.diff(offsets) < 1)
    found = f"client {next(iter(empty), None)} holds no example (and {len(empty) - 1} others)"
    fix = "leave such clients out of the partition or give each at least one"
    require(allow_empty or not len(empty), f"{found}; {fix}")
    check_device_memory(f"{total} examples", tree_bytes(examples), "give fewer, or smaller types")
    store = jax.device_put(examples)  # at most one copy; jnp.asarray of a NumPy array may make two
    return FederatedData(store, jnp.asarray(indices, jnp.int32), jnp.asarray(offsets, jnp.int32))


class ClientSource(NamedTuple):
    """The clients' examples in files, read one client at a time.

    Attributes:
      name: the name of the files in messages, such as the path of their folder.
      client_ids: the clients' names; client i of a run is `client_ids[i]`.
      counts: int32[num_clients]: n_i, at least 1 each for training.
      example: by name, one example as a `jax.ShapeDtypeStruct`; images are decoded.
      read: `client -> {name: values}`, the stored examples of a client: an array [n_i, ...], or for
        the names in `images` a list of n_i files, as bytes. Several threads call it at once.
      images: by name, the format that encoded images are decoded to.
      identity: a text that changes if the content does.
      image_name: `(client, number) -> text`, an image's name in messages; None for its number.
    """

    name: str
    client_ids: Sequence[str]
    counts: np.ndarray
    example: Mapping[str, jax.ShapeDtypeStruct]
    read: Callable[[int], Mapping[str, Any]]
    images: Mapping[str, ImageFormat] = {}
    identity: str = ""
    image_name: Callable[[int, int], str] | None = None

    @property
    def num_clients(self) -> int:
        """N, the number of clients."""
        return len(self.counts)

    def examples_of(self, client: int) -> Batch:
        """Reads and decodes the examples of a client: {name: [n_i, ...]}.

        Args:
          client: the client's id, from 0.

        Raises:
          ValueError: for a missing or damaged file, or examples that differ from `example`.
        """
        stored, name_of, where = stored_of(self, client), self.image_name, where_of(self, client)
        for key, image_format in self.images.items():
            one = self.example[key]
            images = np.empty((len(stored[key]), *one.shape), one.dtype)
            for number, content in enumerate(stored[key]):
                name = f"image {number}" if name_of is None else name_of(client, number)
                images[number] = decode_image(content, image_format, f"{where}, {name}")
            stored[key] = images
        return stored

    def check(self) -> None:
        """Raises ValueError unless names, counts and example are consistent."""
        ids, counts = list(self.client_ids), np.asarray(self.counts)
        twice = [name for name, number in Counter(ids).items() if number > 1]
        named = ids and not twice and all(hasattr(one, "dtype") for one in self.example.values())
        counted = counts.shape == (len(ids),) and counts.dtype.kind in "iu" and (counts >= 0).all()
        found = f"{self.name} has {len(ids)} client_ids, {twice[:1]} twice, "
        found += f"counts of type {describe_tree(counts)} and the example {dict(self.example)}"
        fix = "give each client its own name and a whole number, and jax.ShapeDtypeStructs"
        require(named and counted, f"{found}; {fix}")

    def __repr__(self) -> str:
        counts, one = describe_counts(self.counts), f"({describe_tree(dict(self.example))})"
        return describe(self, name=self.name, clients=len(self.counts), per_client=counts, each=one)


def stored_of(source: ClientSource, client: int) -> dict[str, Any]:
    """Calls `read` for a client; raises ValueError for examples that differ from `example`."""
    where, count = where_of(source, client), int(source.counts[client])
    fix = "fetch or write the files again, or fix the source's counts, example or read"
    try:
        read = source.read(client)
        stored = {name: read[name] for name in source.example}
    except (OSError, KeyError, TypeError) as error:
        found = f"{where} cannot be read ({type(error).__name__}: {error})"
        raise FileError(printable(f"{found}; {fix}")) from error
    for name, one in source.example.items():
        found, expected = f"{len(stored[name])} files", f"{count} files"
        if name not in source.images:
            stored[name] = array = np.asarray(stored[name])
            found, expected = f"{array.dtype}{[*array.shape]}", f"{one.dtype}{[count, *one.shape]}"
        require(found == expected, f"{where} has {name} {found}, not {expected}; {fix}")
    return stored


def where_of(source: ClientSource, client: int) -> str:
    """Names the source and the client in messages."""
    return printable(f"{source.name}: client {source.client_ids[client]!r}")


class ClientDataset(NamedTuple):
    """A data set whose examples are read client by client: dicts of "x" and "y".

    Attributes:
      train: the training examples of each client.
      test: the test examples, by the same clients, by others, or all in one client.
      num_classes: the number of classes; None if "y" is not a class, as in a regression.
      notes: what the reader left out, one line each.
    """

    train: ClientSource
    test: ClientSource
    num_classes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one example's "x"; raises ValueError for examples without "x"."""
        found = f"{self.train.name} has {', '.join(self.train.example)}, but no x"
        require("x" in self.train.example, f"{found}; name the input of the model x")
        return self.train.example["x"].shape

    @property
    def example_dtype(self) -> np.dtype:
        """The dtype of the examples' "x"."""
        return self.train.example["x"].dtype

    def __repr__(self) -> str:
        return describe(self, train=self.train, test=self.test, num_classes=self.num_classes)


AnyDataset: TypeAlias = Dataset | ClientDataset

# A custom factory may also return a `ClientSource`.
datasets = Registry[AnyDataset]("dataset", AnyDataset | ClientSource)


def as_dataset(data: AnyDataset | ClientSource) -> AnyDataset:
    """Returns a data set. A source alone is its own test set, and a note says so."""
    if not isinstance(data, ClientSource):
        return data
    note = f"{data.name} has no test examples: quality is measured on its training examples"
    return ClientDataset(data, data, notes=(note,))
