"""Makes data sets of "x" and "y" from the named features of clients in files."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, reading
from fedjax_algos.base.limits import MAX_INT32
from fedjax_algos.base.reprs import printable
from fedjax_algos.data import dataset
from fedjax_algos.data.federated_data import ClientDataset, ClientSource
from fedjax_algos.data.images import ImageFormat
from fedjax_algos.data.readers import texts

_INPUTS = ("pixels", "image", "snippets", "tokens")  # TFF's names of "x"
_WORDS = "tokens"  # TFF's name of a text of words


class ClientFeatures(NamedTuple):
    """The named features of the clients in a file, read one client at a time.

    `read` is `(client, features, limit) -> {feature: values}`, for the first `limit` examples or,
    if None, all. Values are an array [n, ...], or a list of n texts or image files, as bytes.
    """

    name: str  # of the file, in messages
    client_ids: Sequence[str]
    counts: np.ndarray  # int64[num_clients]: examples of each client
    features: Sequence[str]  # their names
    read: Callable[[int, Sequence[str], int | None], Mapping[str, Any]]
    identity: str  # changes if the file does

    def client(self, client: int) -> str:
        """Names a client in messages."""
        return printable(f"{self.name}: client {self.client_ids[client]!r}")

    def require(self, name: str) -> None:
        """Raises a ValueError that lists the features unless the clients have the named one."""
        known = ", ".join(self.features)[:200]
        with reading(self.name, "a data set of this form", "choose one"):
            require(name in self.features, f"it has no feature {name!r}, only {known}")

    def labels(self, client: int, values: Any, count: int, num_classes: int | None) -> np.ndarray:
        """Returns a client's labels, int32[count]."""
        limit, name = num_classes or dataset.MAX_CLASSES, f"{self.client(client)}: labels"
        return dataset.checked_labels(values, count, limit, name)

    def drawn(self, number: int | None) -> "ClientFeatures":
        """Drops clients without examples; draws at most `number` examples with a fixed seed."""
        total = int(self.counts.sum())
        with reading(self.name, "a data set of clients", "fetch it again"):
            require(total, "none of the clients has an example")
        identity, rows = self.identity, list[np.ndarray]()
        kept = np.flatnonzero(self.counts)
        counts = self.counts[kept]
        if number is not None and number < total:
            chosen = np.sort(np.random.default_rng(0).choice(total, number, replace=False))
            ends = np.cumsum(self.counts)
            owners = np.searchsorted(ends, chosen, side="right")
            kept, counts = np.unique(owners, return_counts=True)
            rows = np.split(chosen - (ends - self.counts)[owners], np.cumsum(counts)[:-1])
            identity += f"; {number} examples"

        def read(client: int, names: Sequence[str], limit: int | None) -> Mapping[str, Any]:
            if not rows:
                return self.read(int(kept[client]), names, limit)
            own = rows[client][:limit]
            stored = self.read(int(kept[client]), names, int(own[-1]) + 1)
            return {
                name: [values[i] for i in own] if isinstance(values, list) else values[own]
                for name, values in stored.items()
            }

        ids = [self.client_ids[client] for client in kept.tolist()]
        return self._replace(client_ids=ids, counts=counts, read=read, identity=identity)


def file_identity(path: PathLike) -> str:
    """Identifies a file by size and time; it may be too large to be read twice."""
    status = os.stat(path)
    return f"{status.st_size} bytes, written {status.st_mtime_ns}"


def client_dataset(
    train: ClientFeatures,
    test: ClientFeatures,
    x: str | None,
    y: str | None,
    num_classes: int | None,
    vocabulary: texts.Vocabulary | None = None,
    length: int | None = None,
    max_examples: int | None = None,
    max_test_examples: int | None = None,
    image_format: ImageFormat | None = None,
) -> ClientDataset:
    """Makes a data set of two features, as in `tff_sqlite`; with a format, `x` holds images."""
    notes = tuple(
        f"{lost} {kind} clients have no examples and are left out"
        for kind, features in (("training", train), ("test", test))
        if (lost := int((features.counts == 0).sum()))
    ) + (dataset.SAME_EXAMPLES,) * (train.name + train.identity == test.name + test.identity)
    train, test = train.drawn(None), test.drawn(max_test_examples)
    x = x or next((name for name in _INPUTS if name in train.features), _INPUTS[0])
    with reading(train.name, "a data set of this form", "give x=NAME, y=NAME or vocabulary=PATH"):
        train.require(x)
        is_text = image_format is None and isinstance(train.read(0, [x], 1)[x], list)
        names = [x] if is_text and y is None else [x, y or "label"]
        for name in names:
            train.require(name)
            test.require(name)
        is_labelled = len(names) > 1
        if is_text:
            known = vocabulary is not None or not (is_labelled or x == _WORDS)
            require(known, f"{x} is a text of words or with labels")
            steps = length or (20 if vocabulary else 80)
            sequences = vocabulary.sequences if vocabulary else texts.character_sequences
        if not is_labelled:
            require(num_classes is None, "num_classes is for labels; leave it out, or give y=NAME")
            num_classes = (vocabulary or texts.CHARACTERS).num_classes
        elif num_classes is None:
            each = [
                np.unique(part.labels(i, part.read(i, names[1:], None)[names[1]], count, None))
                for part in (train, test)
                for i, count in enumerate(part.counts.tolist())
            ]
            num_classes, more = dataset.count_classes(np.concatenate(each))
            notes += more

    def source_of(features: ClientFeatures, limit: int | None) -> ClientSource:
        def read(client: int) -> dict[str, Any]:
            stored, source = features.read(client, names, limit), features.client(client)
            values: Any = stored[x]
            if is_text:
                found = f"{source}: {x} is not a text, but it is in another client"
                require(isinstance(values, list), f"{found}; fetch it again")
                tokens = sequences(values, steps)
                values, targets = tokens[:, :-1], tokens[:, 1:]
            elif image_format is None:
                values = dataset.checked_examples(values, f"{source}: {x}")
            if is_labelled:
                targets = features.labels(client, stored[names[1]], len(values), num_classes)
            return {"x": values, "y": targets}

        images = {} if image_format is None else {"x": image_format}
        example = {name: jax.ShapeDtypeStruct(one[:3], np.uint8) for name, one in images.items()}
        for name, values in read(0).items():
            if name not in images:
                example[name] = jax.ShapeDtypeStruct(values.shape[1:], values.dtype)
        options = (names, num_classes, vocabulary, length, max_examples, image_format)
        facts = "\n".join([repr(options), features.identity, *features.client_ids])
        identity = hashlib.sha256(facts.encode(errors="surrogateescape")).hexdigest()
        counts = np.minimum(features.counts, limit or MAX_INT32)
        if is_text and vocabulary is None:  # a text has several sequences
            all_texts = (features.read(i, [x], limit)[x] for i in range(len(counts)))
            counts = np.array([texts.num_character_sequences(t, steps).sum() for t in all_texts])
        rest: Any = counts.astype(np.int32), example, read, images, identity
        return ClientSource(features.name, features.client_ids, *rest)

    return ClientDataset(source_of(train, max_examples), source_of(test, None), num_classes, notes)
