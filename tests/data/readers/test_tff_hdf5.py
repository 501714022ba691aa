"""TFF's HDF5 files: small ones in their form are read exactly, and hostile ones are refused."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from bad_input_helpers import refused

from fedjax_algos.core import files
from fedjax_algos.data import datasets
from fedjax_algos.data.readers.client_files.texts import CHARACTERS, character_sequences
from fedjax_algos.data.readers.client_files.tff_hdf5 import tff_hdf5

h5py = pytest.importorskip("h5py", reason="h5py, an optional package, is not installed")
RNG = np.random.default_rng(0)
EMNIST = {
    name: {"pixels": RNG.random((n, 28, 28), np.float32), "label": RNG.integers(0, 5, n, np.int32)}
    for name, n in (("f1_02", 3), ("f0_01", 1), ("f9_00", 2))
}
SNIPPETS = {"KING": [b"a snippet", b"different snippet"], "FOOL": [b"abc"]}
SENTENCES = {"7": [b"one must imagine", b"must"], "10": [b"one"] * 3}


def write(path, clients, **options):
    """A file as TFF wrote them; options are those of `create_dataset`."""
    with h5py.File(path, "w") as file:
        for client, features in clients.items():
            for name, values in features.items():
                text = isinstance(values, list)
                kind = {"dtype": h5py.special_dtype(vlen=bytes)} if text else {}
                place = f"examples/{client}/{name}"
                file.create_dataset(place, data=values, **kind, **options)
    return path


@pytest.fixture
def emnist(tmp_path):
    return write(tmp_path / "fed_emnist_train.h5", EMNIST)


def read(path, **options):
    return tff_hdf5(train=path, test=path, **options)


def test_images_of_writers(emnist):
    data = datasets.make(f"tff_hdf5:train={emnist},test={emnist}")
    assert list(data.train.client_ids) == ["f0_01", "f1_02", "f9_00"]
    assert data.train.counts.tolist() == [1, 3, 2]
    assert data.num_classes == 1 + max(client["label"].max() for client in EMNIST.values())
    assert data.example_shape == (28, 28)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(data.train.examples_of, [0, 1, 2] * 8))
    for name, batch in zip([*data.train.client_ids] * 8, found, strict=True):
        np.testing.assert_array_equal(batch["x"], EMNIST[name]["pixels"])
        np.testing.assert_array_equal(batch["y"], EMNIST[name]["label"])
        assert (batch["x"].dtype, batch["y"].dtype) == (np.float32, np.int32)


def test_options(emnist, tmp_path):
    data = read(emnist, max_examples=2, max_clients=2, num_classes=62)
    assert (data.train.counts.tolist(), data.test.counts.tolist()) == ([1, 2], [1, 3, 2])
    np.testing.assert_array_equal(data.train.examples_of(1)["y"], EMNIST["f1_02"]["label"][:2])
    assert (data.num_classes, data.notes) == (62, ())
    assert read(emnist).train.identity == read(emnist).train.identity != data.train.identity
    empty = {name: values[:0] for name, values in EMNIST["f9_00"].items()}
    data = read(write(tmp_path / "e.h5", EMNIST | {"a": empty}))
    assert list(data.train.client_ids) == sorted(EMNIST)
    assert data.notes[0] == "1 training clients have no examples and are left out"
    np.testing.assert_array_equal(data.train.examples_of(2)["y"], EMNIST["f9_00"]["label"])


def test_drawn_test_examples(emnist, tmp_path):
    """Different examples of the clients, in their order, and the same ones each time."""
    rows = {}
    for number in range(1, 7):
        test = read(emnist, max_test_examples=number, num_classes=62).test
        batches = {name: test.examples_of(i) for i, name in enumerate(test.client_ids)}
        assert test.counts.sum() == number == sum(len(batch["y"]) for batch in batches.values())
        for name, batch in batches.items():
            whole = EMNIST[name]["pixels"]
            rows[name] = [int((whole == x).all((1, 2)).argmax()) for x in batch["x"]]
            np.testing.assert_array_equal(batch["x"], whole[rows[name]])
            np.testing.assert_array_equal(batch["y"], EMNIST[name]["label"][rows[name]])
            assert rows[name] == sorted(set(rows[name]))
    again = read(emnist, max_test_examples=number, num_classes=62).test
    assert (again.identity, list(again.client_ids)) == (test.identity, list(test.client_ids))
    assert rows == {name: list(range(len(client["label"]))) for name, client in EMNIST.items()}
    path = write(tmp_path / "s.h5", {name: {"snippets": v} for name, v in SNIPPETS.items()})
    texts = read(path, length=10, max_test_examples=2).test  # of which one has two sequences
    found = [len(texts.examples_of(i)["x"]) for i in range(texts.num_clients)]
    assert texts.counts.tolist() == found
    assert sum(found) in (2, 3)


def test_other_features_filters_and_labels_with_an_axis(tmp_path):
    """CIFAR-100 has coarse labels too; older files have labels [n, 1]."""
    images, labels = RNG.integers(0, 256, (4, 2, 2, 3), np.uint8), np.array([[3], [1], [0], [2]])
    clients = {"0": {"image": images, "label": labels, "coarse_label": labels // 2}}
    options = {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True}
    path = write(tmp_path / "c.h5", clients, **options)
    for y, expected in ((None, labels), ("coarse_label", labels // 2)):
        data = read(path, y=y)
        np.testing.assert_array_equal(data.train.examples_of(0)["y"], expected[:, 0])
        np.testing.assert_array_equal(data.train.examples_of(0)["x"], images)
        assert data.num_classes == expected.max() + 1


def test_characters(tmp_path):
    """The golden values are in test_texts.py."""
    path = write(tmp_path / "s.h5", {name: {"snippets": v} for name, v in SNIPPETS.items()})
    data = read(path, length=10)
    assert data.train.counts.tolist() == [1, 3]
    assert data.num_classes == CHARACTERS.num_classes
    batch = data.train.examples_of(1)
    expected = character_sequences(SNIPPETS["KING"], 10)
    np.testing.assert_array_equal(batch["x"], expected[:, :-1])
    np.testing.assert_array_equal(batch["y"], expected[:, 1:])
    for options in ({"chunks": (1,)}, {"chunks": (1,), "compression": "gzip"}):
        clients = {name: {"snippets": v} for name, v in SNIPPETS.items()}
        other = read(write(tmp_path / "c.h5", clients, **options), length=10)
        assert other.train.examples_of(1)["x"].tolist() == batch["x"].tolist()
    limited = read(path, length=10, max_examples=1)
    assert (limited.train.counts.tolist(), limited.test.counts.tolist()) == ([1, 1], [1, 3])
    assert read(path).example_shape == (80,)


def test_words(tmp_path):
    words = tmp_path / "stackoverflow.word_count"
    words.write_text("one 3\nmust 2\nother 1\n")
    clients = {c: {"tokens": v, "score": np.arange(len(v))} for c, v in SENTENCES.items()}
    path = write(tmp_path / "s.h5", clients)
    data = read(path, vocabulary=str(words), words=2, length=6)
    assert (data.train.counts.tolist(), data.num_classes) == ([3, 2], 6)
    batch = data.train.examples_of(1)
    assert batch["x"].tolist() == [[4, 1, 2, 3, 5, 0], [4, 2, 5, 0, 0, 0]]
    assert batch["y"].tolist() == [[1, 2, 3, 5, 0, 0], [2, 5, 0, 0, 0, 0]]
    assert batch["x"].dtype == batch["y"].dtype == np.int32
    labelled = read(path, vocabulary=str(words), y="score")
    assert labelled.train.examples_of(1)["y"].tolist() == [0, 1]
    assert (labelled.example_shape, labelled.num_classes) == ((20,), 3)
    with pytest.raises(ValueError, match="tokens is a text of words or with labels"):
        read(path)


def replace(place, **options):
    """Writes a dataset anew."""

    def change(file, folder):
        del file[place], folder
        file.create_dataset(place, **options)

    return change


def link(place, target):
    def change(file, folder):
        with h5py.File(folder / "other.h5", "w") as other:
            other["secret"] = np.zeros((1, 28, 28), np.float32)
            other.create_group("examples").create_group("f0_01")
        del file[place]
        file[place] = target(folder / "other.h5")

    return change


def virtual(file, folder):
    with h5py.File(folder / "other.h5", "w") as other:
        other["secret"] = np.zeros((1, 28, 28), np.float32)
    layout = h5py.VirtualLayout((1, 28, 28), np.float32)
    layout[:] = h5py.VirtualSource(folder / "other.h5", "secret", (1, 28, 28))
    del file[PIXELS]
    file.create_virtual_dataset(PIXELS, layout)


def filtered(file, folder):
    """A filter that only a plug-in has: its number is that of blosc, and it is optional here."""
    del file[PIXELS], folder
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((1, 28, 28))
    settings.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)
    space, kind = h5py.h5s.create_simple((1, 28, 28)), h5py.h5t.NATIVE_FLOAT
    made = h5py.h5d.create(file.id, PIXELS.encode(), kind, space, dcpl=settings)
    h5py.Dataset(made)[:] = 0


PIXELS, LABEL = "examples/f0_01/pixels", "examples/f0_01/label"
DAMAGE = {
    "no group": lambda file, _: file.move("examples", "other"),
    "no clients": lambda file, _: [file["examples"].pop(c) for c in EMNIST],
    "no features": lambda file, _: [file["examples/f0_01"].pop(f) for f in ("pixels", "label")],
    "no label": lambda file, _: file["examples/f1_02"].pop("label"),
    "client is an array": replace("examples/f0_01", data=3),
    "unequal lengths": replace(LABEL, data=[1, 2]),
    "class out of range": replace(LABEL, data=[-1]),
    "real class": replace(LABEL, data=[0.5]),
    "scalar": replace(LABEL, data=1),
    "NaN": replace(PIXELS, data=np.full((1, 28, 28), np.nan, np.float32)),
    "other shape": replace("examples/f1_02/pixels", data=np.zeros((3, 9), np.float32)),
    "objects": replace(PIXELS, shape=(1,), dtype=h5py.ref_dtype),
    "pairs": replace(PIXELS, data=np.zeros(1, "i4,f4")),
    "texts among images": replace("examples/f1_02/pixels", data=np.array([b"a"] * 3, object)),
    "huge": replace(PIXELS, shape=(1, 10**7, 10**7), dtype="f4", chunks=(1, 9, 9)),
    "external link": link("examples/f0_01", lambda p: h5py.ExternalLink(p, "/examples/f0_01")),
    "external array": link(PIXELS, lambda p: h5py.ExternalLink(p, "/secret")),
    "soft link": link(PIXELS, lambda p: h5py.SoftLink("/examples/f1_02/pixels")),
    "virtual": virtual,
    "external storage": replace(
        PIXELS, shape=(1, 28, 28), dtype="f4", external=[("/etc/passwd", 0, 28 * 28 * 4)]
    ),
    "filter": filtered,
}


def read_all(path):
    source = read(path, x="pixels").train
    return [source.examples_of(client) for client in range(source.num_clients)]


@pytest.mark.usefixtures("bounded")
def test_damaged_files(tmp_path):
    for number, change in enumerate(DAMAGE.values()):
        path = write(tmp_path / f"{number}.h5", EMNIST)
        (tmp_path / f"{number}").mkdir()
        with h5py.File(path, "r+") as file:
            change(file, tmp_path / f"{number}")
        with refused(path):
            read_all(path)


def test_declared_sizes_are_known_before_they_are_read(tmp_path, monkeypatch):
    """One chunk of 4 kB is written of 40 GB; and one chunk of 80 MB in a row of 40 bytes."""
    path = tmp_path / "huge.h5"
    with h5py.File(path, "w") as file:
        huge = file.create_dataset("examples/a/pixels", (10**7, 10**3), "f4", chunks=(1, 10**3))
        huge[0] = 1
        file["examples/a/label"] = np.zeros(10**7, np.uint8)
    monkeypatch.setattr(files, "host_memory", lambda: 10**9)
    with pytest.raises(ValueError, match=r"'/examples/a/pixels' would need 40 GB, more than half"):
        read(path, max_examples=1)
    with h5py.File(path, "w") as file:
        chunked = {"maxshape": (None, 10**7), "chunks": (1, 10**7)}
        file.create_dataset("examples/a/pixels", (1, 1), "f8", **chunked)[0] = 1
        file["examples/a/label"] = np.zeros(1, np.uint8)
    monkeypatch.setattr(files, "host_memory", lambda: 10**8)
    with pytest.raises(ValueError, match=r"'/examples/a/pixels' would need 80 MB, more than half"):
        read(path)


def test_other_files(emnist, tmp_path, monkeypatch):
    content = emnist.read_bytes()
    (tmp_path / "cut").write_bytes(content[: len(content) // 2])
    with refused(tmp_path / "cut"):
        read(tmp_path / "cut")
    with pytest.raises(ValueError, match=r"no feature 'colour', only label, pixels; choose one"):
        read(emnist, x="colour")
    other = write(tmp_path / "o.h5", {"a": {"pixels": np.zeros((1, 3)), "label": np.zeros(1)}})
    with pytest.raises(ValueError, match="give files of one data set"):
        tff_hdf5(train=emnist, test=other)
    data = read(emnist)
    write(emnist, {name: {k: v[:1] for k, v in c.items()} for name, c in EMNIST.items()})
    with pytest.raises(ValueError, match="has 1 examples, 'label' has 3"):
        data.train.examples_of(1)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ValueError, match="tff_hdf5 needs the package h5py; run: pip install h5py"):
        read(emnist)


@pytest.mark.parametrize("options", [{}, {"chunks": (1,)}])
@pytest.mark.usefixtures("bounded")
def test_damaged_heaps_of_texts(tmp_path, options):
    texts = {"a": {"snippets": [b"different snippet", b"different symbols"]}}
    content = write(tmp_path / "t.h5", texts, **options).read_bytes()
    for place, value in (
        (0, b"gcol"),  # the signature of the heap
        (4, b"\2"),  # its version
        (8, b"\xff" * 7),  # its size
        (24, b"\xa9"),  # that of the first text, which ends in the empty gap: HDF5 does not end
        (24, b"\xff" * 8),
        (56, b"\0" * 16),  # a gap of no size
    ):
        damaged, start = bytearray(content), content.index(b"GCOL") + place
        damaged[start : start + len(value)] = value
        path = tmp_path / f"{place}{len(value)}.h5"
        path.write_bytes(damaged)
        with refused(f"{path}: not an HDF5 file of TFF: "):
            read(path)
