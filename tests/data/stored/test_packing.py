"""Packed folders: what is read is what was packed, also after a kill, and damage is named."""

import json

import chex
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from image_helpers import encoded

from fedjax_algos.core.files import checked_json, file_digest, write_json
from fedjax_algos.data import ClientDataset, ClientSource, ImageFormat, pack
from fedjax_algos.data.stored import open_federated, packed

STORE = r"store\.json: not a part of a packed folder: "
IMAGE = ImageFormat(4, 4, 3, shorter_side=4)


def images(counts=(2, 1, 3), *, name="made", identity="1"):
    """Clients with images of different sizes, whose first pixel is their number."""

    def read(client):
        start = sum(counts[:client])
        numbers = range(start, start + counts[client])
        files = [encoded(np.full((4 + n, 9, 3), n, np.uint8)) for n in numbers]
        return {"x": files, "y": np.array([number % 5 for number in numbers], np.int32)}

    x, y = jax.ShapeDtypeStruct((4, 4, 3), np.uint8), jax.ShapeDtypeStruct((), np.int32)
    names = [f"user {number}\n\u202e" for number in range(len(counts))]
    sizes = np.array(counts, np.int32)
    return ClientSource(name, names, sizes, {"x": x, "y": y}, read, {"x": IMAGE}, identity)


def dataset(**options):
    return ClientDataset(images(**options), images((1,)), 5, ("left out: 3",))


@pytest.fixture
def folder(tmp_path):
    pack(dataset(), tmp_path / "packed")
    return tmp_path / "packed"


def sensors(kind):
    """Clients with numbers, which are read in parts of a line: y is half of x."""

    def read(client):
        x = np.arange(client + 1, dtype=np.float32)[:, None]
        return {"x": x, "y": (x[:, 0] / 2).astype(kind)}

    example = {"x": jax.ShapeDtypeStruct((1,), np.float32), "y": jax.ShapeDtypeStruct((), kind)}
    return ClientSource("sensors", ["a", "b", "c"], np.array([1, 2, 3]), example, read)


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_a_source_alone_is_packed_once_without_classes(tmp_path, kind):
    source = sensors(kind)
    for _ in range(2):  # the second time there is nothing left to do
        pack(source, tmp_path / "packed")
    assert not (tmp_path / "packed" / "test").exists()
    opened = packed(path=tmp_path / "packed")
    assert opened.num_classes is None
    assert opened.test is opened.train
    assert "sensors has no test examples: quality is measured on its" in opened.notes[0]
    pack(ClientDataset(source, sensors(kind)), tmp_path / "two")
    opened = packed(path=tmp_path / "two")
    assert (opened.num_classes, opened.notes) == (None, ())
    assert (tmp_path / "two" / "test").exists()
    for split in ("train", "test"):
        whole = open_federated(tmp_path / "packed", split).load()
        assert whole["x"][:, 0].tolist() == [0, 0, 1, 0, 1, 2]
        assert whole["y"].tolist() == np.array([0, 0, 0.5, 0, 0.5, 1]).astype(kind).tolist()
        assert whole["y"].dtype == kind


def test_images_are_read_as_they_were_packed(folder):
    opened, before = packed(path=folder), images()
    assert (opened.num_classes, opened.notes) == (5, ("left out: 3",))
    assert list(opened.train.client_ids) == list(before.client_ids)
    assert opened.train.counts.tolist() == [2, 1, 3]
    for client in range(3):
        assert opened.train.read(client)["x"] == before.read(client)["x"]  # the files, undecoded
        chex.assert_trees_all_equal(opened.train.examples_of(client), before.examples_of(client))
    assert opened.test.counts.tolist() == [1]
    assert {path.name for path in folder.iterdir()} == {".lock", "store.json", "test", "train"}


@settings(max_examples=20, deadline=None)
@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    shape=hnp.array_shapes(max_dims=3, max_side=3),
    dtype=st.sampled_from([np.uint8, np.int32, np.int64, np.float16, np.float32, ">f4"]),
    data=st.data(),
)
def test_arrays_of_any_shape_and_type_are_read_as_they_were_packed(
    tmp_path_factory, counts, shape, dtype, data
):
    total = sum(counts)
    dtype = np.dtype(dtype)
    finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else None
    x = data.draw(hnp.arrays(dtype, (total, *shape), elements=finite))
    ends = np.cumsum(counts)
    example = {"x": jax.ShapeDtypeStruct(shape, dtype), "y": jax.ShapeDtypeStruct((), np.uint8)}

    def read(client):
        rows = x[ends[client] - counts[client] : ends[client]]
        return {"x": rows, "y": np.zeros(len(rows), np.uint8)}

    source = ClientSource("made", list("abcde")[: len(counts)], np.array(counts), example, read)
    path = tmp_path_factory.mktemp("arrays") / "packed"
    pack(ClientDataset(source, source, 1), path)
    opened = packed(path=path).train
    for client, count in enumerate(counts):
        values = opened.read(client)["x"]
        assert values.dtype == dtype.newbyteorder("=")
        assert values.shape == (count, *shape)
        np.testing.assert_array_equal(values, read(client)["x"])


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [0, 2, 3])
@pytest.mark.parametrize("sync_bytes", [1, 2**26])
def test_an_interrupted_packing_goes_on(tmp_path, monkeypatch, after, sync_bytes):
    """With `sync_bytes` of 1 each client is recorded, with many none before the last."""
    monkeypatch.setattr("fedjax_algos.data.stored.packing._SYNC_BYTES", sync_bytes)
    pack(dataset(), tmp_path / "whole")

    def stop(split, done, total):
        if (split == "test") * 3 + done > after:
            raise Killed

    path = tmp_path / "packed"
    with pytest.raises(Killed):
        pack(dataset(), path, on_client=stop)
    with pytest.raises(ValueError, match=r"has no store\.json: it was not packed, or not to the"):
        packed(path=path)
    if sync_bytes == 1:
        for name in ("x.data", "x.ends", "y.data", "journal"):  # what a kill leaves half-written
            with (path / "train" / name).open("ab") as file:
                file.write(b"abc")
    calls = []
    pack(dataset(), path, on_client=lambda *done: calls.append(done))
    recorded = min(after + 1, 3) if sync_bytes == 1 else 3 * (after >= 2)
    assert calls[: 3 - recorded] == [("train", done, 3) for done in range(recorded + 1, 4)]
    for file in (tmp_path / "whole").rglob("*"):
        if file.is_file():
            assert (path / file.relative_to(tmp_path / "whole")).read_bytes() == file.read_bytes()


def test_packing_again_writes_nothing_and_another_data_set_is_refused(folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}
    pack(dataset(), folder, on_client=pytest.fail)
    for change in ({"identity": "2"}, {"name": "other"}):
        with pytest.raises(ValueError, match="was packed from something else: sources was"):
            pack(dataset(**change), folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    replace(folder / "store.json", '"num_classes": 5', '"num_classes": 6')
    with pytest.raises(ValueError, match=STORE + "its checksum is wrong.*; remove the folder"):
        pack(dataset(), folder)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds 'packed'; name a new or an empty folder"):
        pack(dataset(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "packed", "thesis.txt"}

    def second(split, done, total):
        with pytest.raises(ValueError, match="is written by another process; wait for its end"):
            pack(dataset(), tmp_path / "two")

    pack(dataset(), tmp_path / "two", on_client=second)
    (tmp_path / "two" / "train" / "y.data").unlink()
    with pytest.raises(ValueError, match=r"y.data: there is no such file"):
        pack(dataset(), tmp_path / "two")


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


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


def edit(folder, **changes):
    """Writes `store.json` with other values and their checksum."""
    path = folder / "store.json"
    facts = checked_json(json.loads(path.read_text()))
    write_json(path, {k: v for k, v in (facts | changes).items() if v is not None})


def test_clients_are_drawn_as_by_the_natural_partition(folder):
    data = open_federated(folder, num_clients=2, seed=3)
    rng = np.random.default_rng(3)
    assert data.clients.tolist() == sorted(rng.choice(np.arange(3), 2, replace=False).tolist())
    assert open_federated(folder, min_examples=2).counts().tolist() == [2, 3]
    with pytest.raises(ValueError, match="use at most 2 clients"):
        open_federated(folder, min_examples=2, num_clients=3)
    with pytest.raises(ValueError, match="split"):
        open_federated(folder, "validation")


NOT_IN = r": not .*: its checksum is not that in"
CHANGED = r".*not an? .*: .*; remove the folder and pack it again"
OBJECTS = {"x": {"shape": [1], "dtype": "|O", "image": None}}
DAMAGE = {  # what is found when the folder is opened, or when a client is read
    "values": (lambda f: flip(f / "train/y.data", 9), r"y\.data: client 'user 1" + CHANGED),
    "an image": (lambda f: flip(f / "train/x.data", -1), r"x\.data: client 'user 2" + CHANGED),
    "ends": (lambda f: flip(f / "train/x.ends", 0), r"x\.data: client 'user 0" + CHANGED),
    "ends that descend": (lambda f: flip(f / "train/x.ends", 7), r"client 'user 0" + CHANGED),
    "counts": (lambda f: flip(f / "train/counts.npy", -4), r"train/counts\.npy" + NOT_IN),
    "no counts": (lambda f: (f / "train/counts.npy").unlink(), "there is no such file"),
    "short values": (lambda f: (f / "train/y.data").write_bytes(b"123"), "y.data has 3 bytes"),
    "short ends": (lambda f: (f / "train/x.ends").write_bytes(b"123"), "x.ends is too short"),
    "long images": (lambda f: (f / "train/x.data").open("ab").write(b"1"), "x.data has .* bytes"),
    "another format": (lambda f: edit(f, format=7), "has format 7, and this version reads 1"),
    "no fields": (lambda f: edit(f, fields=None), "'fields'"),
    "empty fields": (lambda f: edit(f, fields={}), STORE + r"the examples have no fields"),
    "no class": (lambda f: edit(f, num_classes=0), STORE + r"num_classes=0 .*pack it again"),
    "no text": (lambda f: (f / "store.json").write_bytes(b"\xff{"), "not an? .*: "),
    "objects": (lambda f: edit(f, fields=OBJECTS), "x is of type object"),
    "no folder": (lambda f: f.rename(f.with_name("moved")), "there is no such file"),
    "fewer names": (lambda f: rewrite(f, "clients.json", "[]"), "has 0 names of 3 clients"),
    "type": (lambda f: replace(f / "store.json", "<i4", "<f4"), STORE + r"its checksum is wrong"),
    "no checksum": (lambda f: replace(f / "store.json", "sha256", "md5"), STORE + "it has no"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message) as error:
        [packed(path=folder).train.read(client) for client in range(3)]
    assert "\n" not in str(error.value)


def bad(**wrong):
    """A data set, of which each client has these values."""

    def read(client):
        return images().read(client) | wrong

    return ClientDataset(images()._replace(read=read), images((1,)), 5)


NAN = np.array([[0.0], [np.nan]], np.float32)
ARRAYS = {"x": jax.ShapeDtypeStruct((1,), np.float32)}
WRONG = {
    "labels": (bad(y=np.array([0, 5], np.int32)), r"client 'user 0.* has label 5; give"),
    "number": (bad(y=np.zeros(3, np.int32)), "has 3 examples of y, not 2"),
    "type": (bad(y=np.zeros(2, np.int64)), r"has y of int64\[\], not int32\[\]"),
    "no classes": (dataset()._replace(num_classes=0), "num_classes=0 .*give"),
    "other fields": (
        ClientDataset(images(), images((1,))._replace(images={}), 5),
        "give both the same names, shapes and types",
    ),
    "NaN": (
        ClientSource("made", ["a"], np.array([2]), ARRAYS, lambda client: {"x": NAN}),
        "has NaN or infinity in x",
    ),
    "a file": (
        dataset()._replace(train=images()._replace(read=lambda client: np.load("no file"))),
        "client 'user 0.* cannot be read: .*'no file'",
    ),
    "a name": (bad()._replace(train=images()._replace(read=lambda client: {})), "without x, "),
    "no client": (images(())._replace(client_ids=[]), "has 0 client_ids, .* at least one name"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_packed_is_named(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        pack(wrong, tmp_path / "packed")
    assert not (tmp_path / "packed" / "store.json").exists()
