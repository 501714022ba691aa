"""Where the examples of each client are read from, one client at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.core import Batch
from fedjax_algos.core.representation import describe, describe_tree
from fedjax_algos.data.images import ImageFormat, decode_image
from fedjax_algos.data.partitioning.base import describe_counts


class ClientSource(NamedTuple):
    """The examples of all clients in files, of which one client's are read at a time.

    Attributes:
      name: of the files in messages, such as the path of their folder.
      client_ids: the clients' names; client i of a run is `client_ids[i]`.
      counts: int32[num_clients]: n_i, at least 1 each for training.
      example: by name, the shape and dtype of one example as a `jax.ShapeDtypeStruct`; for images
        those of the decoded ones.
      read: `client -> {name: values}`, the examples of client i as they are stored: an array
        [n_i, ...], or for the names in `images` a list of n_i files, as bytes. Several threads call
        it at once.
      images: by name, how encoded images are decoded.
      identity: a text that changes if the content does.
      image_name: `(client, number) -> text`, what messages call an image of a client, such as the
        path of its file; None for its number.
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
        """The examples of a client, decoded: {name: [n_i, ...]}.

        Args:
          client: the client's id, from 0.

        Raises:
          ValueError: for a file that is missing or damaged; it and its client are named.
        """
        stored, name_of = dict(self.read(client)), self.image_name
        for key, image_format in self.images.items():
            where = f"{self.name}: client {self.client_ids[client]!r}"
            images = np.empty((len(stored[key]), *self.example[key].shape), np.uint8)
            for number, content in enumerate(stored[key]):
                name = f"image {number}" if name_of is None else name_of(client, number)
                images[number] = decode_image(content, image_format, f"{where}, {name}")
            stored[key] = images
        return stored

    def __repr__(self) -> str:
        return describe(
            self,
            name=self.name,
            clients=len(self.counts),
            per_client=describe_counts(self.counts),
            each=f"({describe_tree(dict(self.example))})",
        )


class ClientDataset(NamedTuple):
    """A data set whose examples are read client by client: dicts of "x" and "y".

    Attributes:
      train: the training examples of each client.
      test: the test examples, of the same clients, of others, or of one client that holds all.
      num_classes: the number of classes; None if "y" is no class, as in a regression.
      notes: what the reader left out, one line each.
    """

    train: ClientSource
    test: ClientSource
    num_classes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one example's "x"; raises ValueError if there is none."""
        if "x" not in self.train.example:
            names = ", ".join(self.train.example)
            raise ValueError(
                f"{self.train.name} has {names}, but no x; name the input of the model x"
            )
        return self.train.example["x"].shape

    @property
    def example_dtype(self) -> np.dtype:
        """The type of the examples' "x"."""
        return self.train.example["x"].dtype

    def __repr__(self) -> str:
        facts = {"train": self.train, "test": self.test, "num_classes": self.num_classes}
        return describe(self, **facts)
