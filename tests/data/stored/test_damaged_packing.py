"""Packed folders whose `store.json` or small files were edited or damaged: refused by name."""

import json

import numpy as np
import pytest

from fedjax_algos.core.files import checked_json, file_digest, write_json
from fedjax_algos.data import by_client, from_arrays, pack
from fedjax_algos.data.partitioning import Partition
from fedjax_algos.data.stored import packed

STORE = r"store\.json: not a part of a packed folder: "


def dataset():
    arrays = np.ones((6, 2), np.float32), np.arange(6, dtype=np.int32) % 5
    return by_client(from_arrays(*arrays, *arrays), Partition.of([[0, 1], [2], [3, 4, 5]]))


@pytest.fixture
def folder(tmp_path):
    pack(dataset(), tmp_path / "packed")
    return tmp_path / "packed"


def edit(folder, **changes):
    """Writes `store.json` with other values and their checksum."""
    path = folder / "store.json"
    facts = checked_json(json.loads(path.read_text()))
    write_json(path, {k: v for k, v in (facts | changes).items() if v is not None})


def replace(path, text, other):
    content = path.read_text()
    assert text in content
    path.write_text(content.replace(text, other))


def rewrite(folder, name, text):
    """Writes a small file of the training examples, with its checksum."""
    (folder / "train" / name).write_text(text)
    splits = json.loads((folder / "store.json").read_text())["splits"]
    splits["train"][name] = file_digest(folder / "train" / name)
    edit(folder, splits=splits)


DAMAGE = {
    "fewer names": (lambda f: rewrite(f, "clients.json", "[]"), "has 0 names of 3 clients"),
    "no list of names": (lambda f: rewrite(f, "clients.json", "{"), "train: not an? .*: "),
    "classes": (
        lambda f: replace(f / "store.json", '"num_classes": 5', '"num_classes": 6'),
        STORE + r"its checksum is wrong: it was edited or damaged; pack it again",
    ),
    "type": (
        lambda f: replace(f / "store.json", "<i4", "<f4"),
        STORE + r"its checksum is wrong",
    ),
    "no checksum": (
        lambda f: replace(f / "store.json", "sha256", "md5"),
        STORE + r"it has no checksum; pack it again",
    ),
    "no class": (lambda f: edit(f, num_classes=0), STORE + r"num_classes=0 .*pack it again"),
    "minus one class": (lambda f: edit(f, num_classes=-1), STORE + r"num_classes=-1 "),
    "empty fields": (lambda f: edit(f, fields={}), STORE + r"the examples have no fields"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_folder_is_not_opened(folder, kind):
    damage, message = DAMAGE[kind]
    damage(folder)
    with pytest.raises(ValueError, match=message) as error:
        packed(path=folder)
    assert "\n" not in str(error.value)


def test_a_damaged_folder_is_not_packed_again_over_it(folder):
    replace(folder / "store.json", '"num_classes": 5', '"num_classes": 6')
    with pytest.raises(ValueError, match=STORE + "its checksum is wrong.*; remove the folder"):
        pack(dataset(), folder)
