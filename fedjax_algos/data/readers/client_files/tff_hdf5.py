"""Reader of the HDF5 files of TensorFlow Federated (TFF)."""

import contextlib
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_algos.base import files
from fedjax_algos.base.errors import needed, require
from fedjax_algos.base.files import PathLike, reading
from fedjax_algos.core.options import Count
from fedjax_algos.data.federated_data import ClientDataset, datasets
from fedjax_algos.data.readers.client_files.client_examples import (
    ClientFeatures,
    client_dataset,
    file_identity,
)
from fedjax_algos.data.readers.client_files.texts import read_vocabulary

_FIX = "fetch the file again"
_FILTERS = {1, 2, 3, 32000}  # part of h5py: deflate, shuffle, fletcher32 and lzf
_OBJECT = struct.Struct("<H6xQ")  # of a heap: number, size
_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("object", "<u4")])
_ERRORS = (AttributeError, KeyError, RuntimeError, TypeError)  # of h5py, besides OSError


@datasets.register
def tff_hdf5(
    *,
    train: PathLike,
    test: PathLike,
    x: str | None = None,
    y: str | None = None,
    num_classes: Count | None = None,
    vocabulary: PathLike | None = None,
    words: Count = 10_000,
    length: Count | None = None,
    max_examples: Count | None = None,
    max_clients: Count | None = None,
    max_test_examples: Count | None = None,
) -> ClientDataset:
    """TFF's HDF5 files, such as fed_emnist_train.h5, fed_cifar100, shakespeare and stackoverflow.

    The group `examples` has a group for each client, with an array [n_i, ...] for each feature.
    Clients are in the order of their names. One client is read at a time.

    - Numbers (`pixels`, `image`) are "x" as they are, and "y" is their label, int32[n].
    - A text becomes ids, as in TFF's baselines: 0 is padding, the symbols are 1 to V, V + 1 is any
      other symbol, and V + 2 and V + 3 are the begin and the end of a text. "x" is int32[n, length]
      and "y" int32[n, length] the ids that follow; there are V + 4 classes.

      - With a vocabulary, the symbols are V words, separated by a blank. Each text is one sequence:
        begin, its first `length` words, and end if it fits (StackOverflow, length 20).
      - Without one, the symbols are TFF's 86 characters. A text with its begin and end is cut into
        pieces of length + 1 ids, and the last piece is padded (Shakespeare, length 80).
    - A text with labels needs a vocabulary; "x" is as above.

    TFF shuffles a client's texts before it takes `max_examples`; here we take the first ones.

    Links, virtual datasets, data in other files, and filters that h5py does not have are refused.

    Args:
      train, test: the files.
      x: the examples' feature; None for the first found of pixels, image, snippets and tokens.
      y: the labels' feature; None for `label` or, for a text, the ids that follow.
      num_classes: one more than the largest label if None; all labels are then read once.
      vocabulary: a file with a word in each line, the most frequent first, such as TFF's
        stackoverflow.word_count.
      words: the largest number of words used of the vocabulary, 10,000 in StackOverflow's task.
      length: the length of a sequence, in words or characters; 20 words or 80 characters if None.
      max_examples: use only the first examples or texts of each training client; None for all.
      max_clients: use only the first training clients; None for all.
      max_test_examples: draw this many test examples or texts with a fixed seed; None for all.

    Source: Reddi et al., "Adaptive Federated Optimization", https://arxiv.org/abs/2003.00295;
    https://github.com/google-parfait/tensorflow-federated, simulation/datasets and
    simulation/baselines.
    """
    known = read_vocabulary(vocabulary, words) if vocabulary else None
    parts = _features(train, max_clients), _features(test)
    limits = max_examples, max_test_examples
    return client_dataset(*parts, x, y, num_classes, known, length, *limits)


def _features(path: PathLike, max_clients: int | None = None) -> ClientFeatures:
    with _examples(path) as examples:
        clients = sorted(examples)[:max_clients]
        require(clients, "it has no clients")
        features = sorted(_member(examples, clients[0], "Group"))
        require(features, f"client {clients[0]!r} has no features")
        groups = (_member(examples, client, "Group") for client in clients)
        counts = [len(_member(group, features[0])) for group in groups]

    def read(client: int, names: Sequence[str], limit: int | None) -> Mapping[str, Any]:
        with _examples(path) as examples:
            group = _member(examples, clients[client], "Group")
            stored = {name: _member(group, name) for name in names}
            for dataset in stored.values():
                found = f"{dataset.name!r} has {len(dataset)} examples, {features[0]!r} has"
                require(len(dataset) == counts[client], f"{found} {counts[client]}")
            return {name: _values(dataset, limit) for name, dataset in stored.items()}

    numbers = np.array(counts, np.int64)
    return ClientFeatures(os.fspath(path), clients, numbers, features, read, file_identity(path))


@contextlib.contextmanager
def _examples(path: PathLike) -> Iterator[Any]:
    """Opens a file for the context and returns its group `examples`."""
    h5py = needed("h5py", "tff_hdf5")
    with reading(path, "an HDF5 file of TFF", _FIX, *_ERRORS):
        files.require_regular(path)
        with h5py.File(path, "r") as file:
            yield _member(file, "examples", "Group")


def _member(group: Any, name: str, kind: str = "Dataset") -> Any:
    """Returns a member of a group; links to another place are refused."""
    import h5py

    linked = not isinstance(group.get(name, getlink=True), h5py.HardLink)
    require(not linked, f"{group.name!r} has no {name!r}, or only a link to another place")
    require(isinstance(group[name], getattr(h5py, kind)), f"{group[name].name!r} is not a {kind}")
    return group[name]


def _values(dataset: Any, limit: int | None) -> np.ndarray | list[bytes]:
    """Reads the first `limit` rows of an array of numbers or texts, after checking its size."""
    import h5py

    name, kind = dataset.name, dataset.dtype.kind
    settings = dataset.id.get_create_plist()
    filters = {settings.get_filter(i)[0] for i in range(settings.get_nfilters())}
    alone = not (dataset.is_virtual or dataset.external) and filters <= _FILTERS
    require(alone, f"{name!r} needs another file, or a filter that is not part of h5py")
    text = h5py.check_string_dtype(dataset.dtype) is not None
    plain = dataset.ndim == 1 if text else kind in "uif"
    require(plain, f"{name!r} holds neither numbers nor one text for each example")
    written = not dataset.size or dataset.id.get_storage_size()
    require(written, f"{name!r} was declared with shape {list(dataset.shape)}, but not written")
    chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
    files.check_array_bytes(f"{name!r}", max(dataset.nbytes, chunk), "leave examples out")
    if not text:
        return dataset[:limit]
    _check_heaps(dataset)
    return [*map(bytes, dataset[:limit])]


def _check_heaps(dataset: Any) -> None:
    """Checks the heaps of texts: HDF5 2.0 would loop forever at an empty gap (an object 0)."""
    # https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html, III.E
    # heaps of compressed references are not found
    import h5py

    settings, places = dataset.id.get_create_plist(), []
    if settings.get_layout() == h5py.h5d.CONTIGUOUS:
        places = [(dataset.id.get_offset(), dataset.id.get_storage_size())]
    elif settings.get_layout() == h5py.h5d.CHUNKED and not settings.get_nfilters():
        chunks = (dataset.id.get_chunk_info(i) for i in range(dataset.id.get_num_chunks()))
        places = [(chunk.byte_offset, chunk.size) for chunk in chunks]
    with files.open_regular(dataset.file.filename) as file:
        end = file.seek(0, os.SEEK_END)

        def part(place: int, size: int) -> bytes:
            file.seek(min(place, end))
            return file.read(max(0, min(size, end - place)))

        references = b"".join(part(*place) for place in places)
        whole = len(references) // _REFERENCE.itemsize
        for heap in np.unique(np.frombuffer(references, _REFERENCE, whole)["heap"]):
            start = dataset.file.userblock_size + int(heap)
            size = int.from_bytes(part(start + 8, 8), "little") if heap else 0
            content, at = part(start + 16, size - 16), 0
            while at + _OBJECT.size <= len(content):
                number, length = _OBJECT.unpack_from(content, at)
                step = length if number == 0 else _OBJECT.size + length + -length % 8
                left = len(content) - at
                require(0 < step <= left, f"{dataset.name!r} has texts in a damaged heap")
                at += step
