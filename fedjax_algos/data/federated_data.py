"""The flat store of examples on the device, sources that read one client at a time, data sets."""

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
from fedjax_algos.core.checks import KindError, check_kind
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
    if isinstance(array, jax.core.Tracer):
        return False
    if isinstance(array, jax.Array):
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
    if not leaves:
        fix = "give a tree of arrays [examples, ...], such as {'x': ..., 'y': ...}"
        raise ValueError(f"{name}={examples!r} hold no array; {fix}")
    for _, leaf in leaves:
        kind = leaf.dtype if isinstance(leaf, Array) else type(leaf).__name__
        numbers = isinstance(leaf, Array) and np.dtype(kind).kind not in "OSUMm"
        fix = "give arrays of numbers of NumPy or JAX, such as np.asarray(...)"
        require(numbers, f"{name} hold a leaf of type {kind}; {fix}")
    total, *others = sorted({np.shape(leaf)[0] if np.ndim(leaf) else 0 for _, leaf in leaves})
    rows = f"the arrays of {name} have {[total, *others]} rows; they need the same number"
    require(not others, rows)
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
    if isinstance(examples, list) and not all(hasattr(each, "dtype") for each in examples):
        raise KindError(
            f"examples are a list of {len(examples)} entries, not arrays; give one tree of "
            "arrays [examples, ...] for all clients, such as {'x': ..., 'y': ...}, and say in the "
            "partition which rows each client holds"
        )
    total = check_examples("examples", examples)
    if not isinstance(partition, tuple):
        check_kind("partition", partition, Partition, "give Partition.of(rows of each client)")
    indices, offsets = (np.asarray(part) for part in partition)
    kinds = f"the partition has indices of type {indices.dtype} and offsets of type {offsets.dtype}"
    whole = not len(indices) or {indices.dtype.kind, offsets.dtype.kind} <= set("iu")
    require(whole, f"{kinds}; give whole numbers, such as Partition.of(rows) makes them")
    spans = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == len(indices)
    spans = spans and np.diff(offsets).min(initial=0) >= 0
    wrong = f"the offsets must ascend from 0 to the {len(indices)} indices"
    require(spans, f"{wrong}; make the partition with Partition.of(rows)")
    outside = next(iter(indices[(indices < 0) | (indices >= total)]), None)
    known = f"the partition names example {outside}; there are examples 0 to {total - 1}"
    require(outside is None, known)
    require(len(offsets) > 1, "the partition has no clients; give the rows of at least one")
    empty = np.flatnonzero(np.diff(offsets) < 1)
    some = f"client {next(iter(empty), None)} holds no example (and {len(empty) - 1} others)"
    fix = "leave such clients out of the partition or give each at least one"
    require(allow_empty or not len(empty), f"{some}; {fix}")
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
            images = np.empty((len(stored[key]), *self.example[key].shape), np.uint8)
            for number, content in enumerate(stored[key]):
                name = f"image {number}" if name_of is None else name_of(client, number)
                images[number] = decode_image(content, image_format, f"{where}, {name}")
            stored[key] = images
        for key, one in self.example.items():
            array, shape = np.asarray(stored[key]), (int(self.counts[client]), *one.shape)
            found = f"{where} has {key} {array.dtype}{[*array.shape]}, not {one.dtype}{[*shape]}"
            same = array.shape == shape and array.dtype == one.dtype
            fix = "fetch or write the files again, or fix the source's counts, example or read"
            require(same, f"{found} as the source says; {fix}")
        return stored

    def check(self) -> None:
        """Raises ValueError unless names, counts and example are consistent."""
        ids, counts = list(self.client_ids), np.asarray(self.counts)
        found = f"{self.name} has {len(ids)} client_ids, and counts are {describe_tree(counts)}"
        fits = ids and counts.shape == (len(ids),) and counts.dtype.kind in "iu"
        fix = "give at least one name, and for each a whole number of at least 0"
        require(fits and counts.min() >= 0, f"{found}; {fix}")
        twice = next((name for name, number in Counter(ids).items() if number > 1), None)
        require(twice is None, f"{self.name} has two clients {twice!r} in client_ids; rename one")
        for key, one in self.example.items():
            plain = isinstance(getattr(one, "shape", None), tuple) and hasattr(one, "dtype")
            found = f"{self.name}: {key!r} of its example is {one!r}"
            require(plain, f"{found}; give jax.ShapeDtypeStruct(shape, dtype) of one example")

    def __repr__(self) -> str:
        counts, each = describe_counts(self.counts), f"({describe_tree(dict(self.example))})"
        number = len(self.counts)
        return describe(self, name=self.name, clients=number, per_client=counts, each=each)


def stored_of(source: ClientSource, client: int) -> dict[str, Any]:
    """Calls `read` for a client; if it fails, raises a ValueError that names the client."""
    where = where_of(source, client)
    try:
        read = source.read(client)
        stored = dict(read) if isinstance(read, Mapping) else {}
    except OSError as error:
        raise FileError(printable(f"{where} cannot be read: {error}")) from error
    missing = next((name for name in source.example if name not in stored), None)
    found = f"{where}: read returned {', '.join(map(str, stored)) or 'nothing'}"
    require(missing is None, f"{found}, without {missing}, which the source's example has")
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


def as_dataset(given: AnyDataset | ClientSource) -> AnyDataset:
    """Returns a data set. A source alone is its own test set, and a note says so."""
    if not isinstance(given, ClientSource):
        return given
    note = f"{given.name} has no test examples: quality is measured on its training examples"
    return ClientDataset(given, given, notes=(note,))
