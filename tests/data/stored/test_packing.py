"""Packed folders: what is read is what was packed, also after a kill, and damage is named."""

import chex
import jax
import numpy as np
import pytest
from data_forms import image, refused

import fedjax_algos as fa
from fedjax_algos.base.arrays import read_sealed, write_sealed
from fedjax_algos.data import ClientDataset, ClientSource, ImageFormat, pack
from fedjax_algos.data.stored import open_federated, packed
from fedjax_algos.data.stored.stored_data import source_of


def images(counts=(2, 1, 3), *, name="made", identity="1"):
    """Clients with images of different sizes, whose first pixel is their number."""

    def read(client):
        numbers = sum(counts[:client]) + np.arange(counts[client])
        files = [image(np.full((4 + n, 9, 3), n, np.uint8)) for n in numbers]
        return {"x": files, "y": (numbers % 5).astype(np.int32)}

    x, y = jax.ShapeDtypeStruct((4, 4, 3), np.uint8), jax.ShapeDtypeStruct((), np.int32)
    names, sizes = [f"user {n}\n\u202e" for n in range(len(counts))], np.array(counts, np.int32)
    scaled = {"x": ImageFormat(4, 4, 3, shorter_side=4)}
    return ClientSource(name, names, sizes, {"x": x, "y": y}, read, scaled, identity)


def dataset(**options):
    return ClientDataset(images(**options), images((1,)), 5, ("left out: 3",))


@pytest.fixture
def folder(tmp_path):
    pack(dataset(), tmp_path / "packed")
    return tmp_path / "packed"


def sensors(kind):
    """Clients with numbers: y is half of x."""
    x = np.array([0, 0, 1, 0, 1, 2], np.float32)
    examples = {"x": x[:, None], "y": (x / 2).astype(kind)}
    return source_of(examples, fa.Partition.of([[0], [1, 2], [3, 4, 5]]), ["a", "b", "c"])


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_a_source_alone_is_packed_once_without_classes(tmp_path, kind):
    source = sensors(kind)
    for _ in range(2):  # the second time there is nothing left to do
        pack(source, tmp_path / "packed")
    assert not (tmp_path / "packed" / "test").exists()
    opened = packed(path=tmp_path / "packed")
    assert opened.num_classes is None
    assert opened.test is opened.train
    assert "examples in memory has no test examples" in opened.notes[0]
    pack(ClientDataset(source, sensors(kind)), tmp_path / "two")
    opened = packed(path=tmp_path / "two")
    assert (opened.num_classes, opened.notes) == (None, ())
    assert (tmp_path / "two" / "test").exists()
    for split in ("train", "test"):
        whole = open_federated(tmp_path / "packed", split).load()
        assert whole["x"][:, 0].tolist() == [0, 0, 1, 0, 1, 2]
        halves = np.array([0, 0, 0.5, 0, 0.5, 1]).astype(kind)
        np.testing.assert_array_equal(whole["y"], halves, strict=True)


def test_whole_data_must_fit_into_memory(tmp_path, monkeypatch):
    pack(sensors(np.float32), tmp_path)
    data, place = open_federated(tmp_path), "fedjax_algos.base.limits.host_memory"
    monkeypatch.setattr(place, lambda: 6 * (4 + 4))
    assert len(data.load()["x"]) == 6
    monkeypatch.setattr(place, lambda: 6 * (4 + 4) - 1)
    with pytest.raises(ValueError, match="the 6 examples of 3 clients"):
        data.load()


def test_images_are_read_as_they_were_packed(folder):
    opened, before = packed(path=folder), images()
    assert (opened.num_classes, opened.notes) == (5, ("left out: 3",))
    assert list(opened.train.client_ids) == list(before.client_ids)
    assert opened.train.counts.tolist() == [2, 1, 3]
    for client in range(3):
        assert opened.train.read(client)["x"] == before.read(client)["x"]  # the files, undecoded
        chex.assert_trees_all_equal(opened.train.examples_of(client), before.examples_of(client))
    assert opened.test.counts.tolist() == [1]
    assert {path.name for path in folder.iterdir()} == {".lock", "index.npz", "test", "train"}


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float16", "float32", ">f4"])
def test_arrays_of_any_shape_and_type_are_read_as_they_were_packed(tmp_path, dtype):
    clients = fa.Partition.of([[0, 1, 2, 3], [], [4, 5], [6]])
    for shape in ((1,), (2, 3, 1)):
        x = np.random.default_rng(0).integers(0, 256, (7, *shape)).astype(dtype)
        folder, examples = tmp_path / f"{shape}", {"x": x, "y": np.zeros(7, np.uint8)}
        pack(source_of(examples, clients, list("abcd")), folder)
        native = x.astype(x.dtype.newbyteorder("="))
        for client, expected in enumerate(np.split(native, clients.offsets[1:-1])):
            values = packed(path=folder).train.read(client)["x"]
            np.testing.assert_array_equal(values, expected, strict=True)


@pytest.mark.parametrize("save_seconds", [0, 30])
@pytest.mark.parametrize("after", [0, 2, 3])
def test_an_interrupted_packing_goes_on(tmp_path, monkeypatch, after, save_seconds):
    """With `save_seconds` of 0 each client is recorded, with many none before the last."""
    monkeypatch.setattr("fedjax_algos.data.stored.packing._SAVE_SECONDS", save_seconds)
    pack(dataset(), tmp_path / "whole")

    def stop(split, done, total):
        if (split == "test") * 3 + done > after:
            raise KeyboardInterrupt

    path = tmp_path / "packed"
    with pytest.raises(KeyboardInterrupt):
        pack(dataset(), path, on_client=stop)
    recorded = min(after + 1, 4) if save_seconds == 0 else 3 * (after >= 2) + (after == 3)
    if recorded < 4:
        with pytest.raises(ValueError, match=r"index\.npz: there is no|has \d of \d clients; give"):
            packed(path=path)
    (path / ".77-8-index.npz").write_bytes(b"half")
    if recorded < 3:  # what a kill leaves half-written
        with (path / "train" / "x.images").open("ab") as file:
            file.write(b"abc")
    calls = []
    pack(dataset(), path, on_client=lambda *done: calls.append(done))
    expected = [("train", done, 3) for done in (1, 2, 3)] + [("test", 1, 1)]
    assert calls == expected[recorded:]
    for file in filter(lambda file: file.is_file(), (tmp_path / "whole").rglob("*")):
        assert (path / file.relative_to(tmp_path / "whole")).read_bytes() == file.read_bytes()


def test_packing_again_writes_nothing_and_another_data_set_is_refused(folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}
    pack(dataset(), folder, on_client=pytest.fail)
    for change in ({"identity": "2"}, {"name": "other"}):
        with pytest.raises(ValueError, match="something else: sources"):
            pack(dataset(**change), folder)
    with pytest.raises(ValueError, match="something else: clients"):
        pack(dataset(counts=(1, 2, 3)), folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    flip("index.npz", 99)(folder)
    with pytest.raises(ValueError, match=r"index\.npz: .*checksum is wrong"):
        pack(dataset(), folder)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds packed, thesis"):
        pack(dataset(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "packed", "thesis.txt"}

    def second(split, done, total):
        with pytest.raises(ValueError, match="could not be acquired"):
            pack(dataset(), tmp_path / "two")

    pack(dataset(), tmp_path / "two", on_client=second)
    (tmp_path / "two" / "train" / "y.npy").unlink()
    with pytest.raises(ValueError, match=r"y\.npy: there is no such file"):
        pack(dataset(), tmp_path / "two")


def test_clients_are_drawn_as_by_the_natural_partition(folder):
    data = open_federated(folder, num_clients=2, seed=3)
    rng = np.random.default_rng(3)
    assert data.clients.tolist() == sorted(rng.choice(np.arange(3), 2, replace=False).tolist())
    assert open_federated(folder, min_examples=2).counts().tolist() == [2, 3]
    with pytest.raises(ValueError, match="use at most 2 clients"):
        open_federated(folder, min_examples=2, num_clients=3)
    with pytest.raises(ValueError, match="split"):
        open_federated(folder, "validation")


def flip(name, position):
    def change(folder):
        content = bytearray((folder / name).read_bytes())
        content[position] ^= 1
        (folder / name).write_bytes(content)

    return change


def replace(text, other, name):
    def change(folder):
        (folder / name).write_bytes((folder / name).read_bytes().replace(text, other))

    return change


def edit(**changes):
    """Writes the index with other facts and their checksum; None removes one."""

    def change(folder):
        arrays, facts = read_sealed(folder / "index.npz", "", "")
        facts = {key: value for key, value in (facts | changes).items() if value is not None}
        write_sealed(folder / "index.npz", dict(arrays), facts)

    return change


ONE = {"shape": [1], "dtype": "<f4", "image": None}
CLIENTS = {"train": {"a": 2, "b": 1, "c": 4}}
DAMAGE = {  # what is found when the folder is opened, or when a client is read
    "values": (flip("train/y.npy", -13), r"y\.npy: client 'user 1.*pack it again"),
    "an image": (flip("train/x.images", -1), r"x\.images: client 'user 2.*pack it again"),
    "a type": (replace(b"<i4", b">i4", "train/y.npy"), r"y\.npy: .*is >i4\[6\], not int32\[6\]"),
    "short values": (lambda f: (f / "train/y.npy").write_bytes(b"123"), r"y\.npy: not a part"),
    "short images": (lambda f: (f / "train/x.images").write_bytes(b"1"), "x.images: .*checksum"),
    "no values": (lambda f: (f / "train/y.npy").unlink(), "y.npy: there is no such file"),
    "another format": (edit(format=1), "has format 1, and this version reads 2; .* pack it again"),
    "no fields": (edit(fields=None), "'fields'"),
    "other fields": (edit(fields={"y": ONE}), r"index\.npz: .*pack it again"),
    "other clients": (edit(clients=CLIENTS), r"y\.npy: .*int32\[6\], not int32\[7\]"),
    "an index": (flip("index.npz", 999), r"index\.npz: .*checksum is wrong; .* pack it again"),
    "no index": (lambda f: (f / "index.npz").unlink(), r"index\.npz: there is no such file"),
    "no folder": (lambda f: f.rename(f.with_name("moved")), "there is no such file"),
}


@pytest.mark.parametrize(("damage", "named"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(folder, damage, named):
    damage(folder)
    with refused(folder, named):
        [packed(path=folder).train.read(client) for client in range(3)]


def bad(**wrong):
    """A data set, where each client has these values."""
    return dataset()._replace(train=images()._replace(read=lambda i: images().read(i) | wrong))


NAN = {"x": np.array([[0.0], [np.nan]], np.float32)}
WRONG = {
    "labels": (bad(y=np.array([0, 5], np.int32)), r"client 'user 0.* has label 5; give"),
    "number": (bad(y=np.zeros(3, np.int32)), r"has y int32\[3\], not int32\[2\]"),
    "type": (bad(y=np.zeros(2, np.int64)), r"has y int64\[2\], not int32\[2\]"),
    "no classes": (dataset()._replace(num_classes=0), "num_classes=0"),
    "fields": (dataset()._replace(test=images((1,))._replace(images={})), "both the same names"),
    "NaN": (source_of(NAN, fa.Partition.of([[0, 1]]), ["a"]), "has NaN or infinity in x"),
    "a file": (images()._replace(read=lambda i: np.load("none")), "user 0.* cannot .*'none'"),
    "a name": (images()._replace(read=lambda i: {}), "KeyError: 'x'"),
    "no client": (images(())._replace(client_ids=[]), "has 0 client_ids"),
}


@pytest.mark.parametrize(("wrong", "named"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_packed_is_named(tmp_path, wrong, named):
    with pytest.raises(ValueError, match=named):
        pack(wrong, tmp_path / "packed")
    with pytest.raises(ValueError, match=r"index\.npz: there is no such file"):
        packed(path=tmp_path / "packed")
