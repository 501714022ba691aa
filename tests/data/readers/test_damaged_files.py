"""Missing, damaged, oversized and hostile files: each reader refuses them in one line.

`DAMAGES` has a table for each reader: what an error names, and the changes of the good files of
`data_forms` that give this error. A change is a function of the folder, or what the good files are
written with instead; there, `read` are options of the reader.
"""

import gzip
import json
import os
import shutil
import struct
import sys
import tarfile
import zipfile
import zlib

import data_forms as forms
import numpy as np
import pytest
from data_forms import ARRAYS, CLIENTS, FORMS, IXI, PIXELS, TEST, TRAIN, idx_bytes, jpegs, refused

PIPE = "it is a pipe or a device, not a regular file"
FILES = {  # those of the good files that are damaged one by one, if not all
    "cifar10": ["data_batch_5.bin", "test_batch.bin"],
    "hf": ["set/*/*"],
    "tfds": ["coloured/*/dataset_info.json", "coloured/*/*array_record*"],
    "image_folder": ["*.csv", "b2.jpg"],
    "fed_isic2019": ["train_test_split", "*/ISIC_0065613.jpg"],
    "fed_ixi": ["*.csv", "IXI016*/*/*"],
}
LIBRARY = {
    "hf",
    "tfds",
    "leaf",
    "fed_ixi",
    "tff_hdf5",
}  # which say otherwise that a file is missing


def load(form, folder, **options):
    """Reads all that a data set has."""
    data = form.read(folder, **options)
    for part in (data.train, data.test):
        for client in range(getattr(part, "num_clients", 0)):
            part.examples_of(client)


def slow(names):
    """Parameters, of which those of libraries and of volumes are not for the quick tier."""
    return [
        pytest.param(name, marks=[pytest.mark.all] * (name in ("hf", "tfds", "fed_ixi")))
        for name in names
    ]


@pytest.mark.parametrize("name", slow(FORMS))
def test_every_file(tmp_path, name):
    """It is empty, of another kind, cut, missing, a pipe or a device."""
    form = FORMS[name]
    form.write(tmp_path)
    load(form, tmp_path)
    paths = {path for each in FILES.get(name, ["**/*"]) for path in tmp_path.glob(each)}
    for path in sorted(path for path in paths if path.is_file()):
        content = path.read_bytes()
        kinds = b"", b"another kind" * 99, b"\x1f\x8b" * 99, b"PK\x03\x04" * 99
        for other in (*kinds, content[: len(content) * 2 // 5]):
            path.write_bytes(other)
            with refused(tmp_path):
                load(form, tmp_path)
        path.unlink()
        with refused(tmp_path, "" if name in LIBRARY else "there is no such file"):
            load(form, tmp_path)
        os.mkfifo(path)
        with refused(tmp_path, PIPE):
            load(form, tmp_path)
        path.unlink()
        path.symlink_to("/dev/zero")
        with refused(tmp_path, PIPE):
            load(form, tmp_path)
        path.unlink()
        path.write_bytes(content)
    load(form, tmp_path)


NEEDED = {"fedjax_sqlite": "msgpack", "tff_hdf5": "h5py", "hf": "datasets", "fed_ixi": "nibabel"}
NEEDED |= {"tfds": "tensorflow_datasets"}


@pytest.mark.parametrize("name", slow(NEEDED))
def test_a_package_that_is_not_installed(tmp_path, monkeypatch, name):
    FORMS[name].write(tmp_path)
    monkeypatch.setitem(sys.modules, NEEDED[name], None)
    package = NEEDED[name].replace("_", "-")
    with pytest.raises(ValueError, match=f"{name} needs the package {package}; run: pip install"):
        FORMS[name].read(tmp_path)


HOST, READERS = "core.files.host_memory", "data.readers"
IMAGES = [forms.image(pixels) for pixels in forms.SQUARES.values()]
LARGE = np.zeros((3, 64, 64), np.uint8)
LIMITS = [  # what bounds files, the smallest bound of good ones, and changes of these
    ("npz", HOST, 2 * (sum(array.nbytes for array in ARRAYS.values()) + 4 * 128), {}),
    ("npz", HOST, 2 * 3 * 64 * 64, jpegs(LARGE) | {"x_test": LARGE[:2]}),
    ("idx", HOST, 2 * 5 * 28 * 28, {}),
    ("cifar10", f"{READERS}.cifar.MAX_BYTES", 2 * 3073, {}),
    ("leaf", f"{READERS}.client_files.leaf.host_memory", 4 * 7959, {}),
    ("roles", HOST, 64 * 62, {}),
    ("tff_hdf5", HOST, 2 * 3 * 28 * 28 * 4, {}),
    ("hf", HOST, 2 * 7 * 6 * 4 * 3, {}),
    ("tfds", HOST, 2 * (7 * 6 * 4 * 3 + 5 * 8), {}),  # with the labels of the training examples
    ("image_folder", f"{READERS}.image_folder.MAX_IMAGE_BYTES", max(map(len, IMAGES)), {}),
    ("image_folder", HOST, 64 * len(TRAIN), {}),
    ("fed_ixi", f"{READERS}.flamby._MAX_BYTES", 352 + 2 * 6 * 4 * 5, {}),
]


def bound(monkeypatch, place, limit):
    """Sets a constant, or what the function `host_memory` returns."""
    monkeypatch.setattr(f"fedjax_algos.{place}", limit if "MAX" in place else lambda: limit)


@pytest.mark.parametrize(("name", "place", "most", "changes"), LIMITS)
def test_sizes_up_to_a_bound_are_read(tmp_path, monkeypatch, name, place, most, changes):
    FORMS[name].write(tmp_path, **changes)
    bound(monkeypatch, place, most)
    load(FORMS[name], tmp_path)
    bound(monkeypatch, place, most - 1)
    with refused(tmp_path, "more than"):
        load(FORMS[name], tmp_path)


def patch(name, *places):
    """Overwrites bytes of a file: (from after which mark, at which distance, by what)."""

    def change(folder):
        content = bytearray((folder / name).read_bytes())
        for mark, distance, value in places:
            start = content.index(mark) + distance
            content[start : start + len(value)] = value
        (folder / name).write_bytes(content)

    return change


def new(name, content):
    return lambda folder: forms.write(folder, {name: content})


def member(header, content=bytes(60)):
    """A file of NumPy's format 1.0 with any header."""
    text = header.encode("latin-1") + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content
    return {"x_train": content}


def header(kind="|u1", shape="(5, 4, 3)"):
    return f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}}}"


def twice(folder):
    with zipfile.ZipFile(folder / "a.npz", "a") as archive, pytest.warns(match="Duplicate name"):
        archive.writestr("x_train.npy", b"")


def zip_headers(place, value):
    """Changes both headers of the first member of an archive."""
    return patch("a.npz", (b"PK\x03\x04", place, value), (b"PK\x01\x02", place + 2, value))


GREY = PIXELS[:3, :8, :8]
FILE = forms.image(GREY[0], "JPEG")
HUGE = FILE.index(b"\xff\xc0") + 5  # the place of height and width
HUGE = FILE[:HUGE] + (60_000).to_bytes(2, "big") * 2 + FILE[HUGE + 4 :]
NPZ = {
    "no array 'x_train'": [{"x_train": None}],
    "no array 'y_test'": [{"y_test": None}],
    "no array 'who'": [{"read": {"users": "who"}}],
    "y_train has label -1 in example 3": [{"y_train": np.array([0, 1, 1, -1, 0])}],
    "y_test has label 3": [{"read": {"num_classes": 3}}],
    r"uint8\[4, 3\] in x_train and uint8\[3, 3\]": [{"x_test": ARRAYS["x_test"][:, :3]}],
    r"users are int64\[4\]": [{"user_train": np.arange(4)}],
    "allow_pickle": [{"x_train": np.array([None] * 5)}],
    "it has an array twice": [twice],
    r"only \\x1b\[31m": [{"x_train": None, "\x1b[31m": np.zeros(3)}],
    "only (long)+.{,80}$": [{"x_train": None, "long" * 5000: np.zeros(3)}],
    "CRC": [patch("a.npz", (b"\x93NUMPY", 140, b"\xf3" * 9))],
    "a.npz": [
        patch("a.npz", (b"PK", 0, b"??")),
        patch("a.npz", (b"x_train.npy", 40, b"\xff" * 20)),
        *(zip_headers(*each) for each in ((6, b"\1"), (8, b"c"), (4, b"c"), (6, b" "))),
        *map(member, ["(" * 9000, "-" * 9000 + "1", "[" * 150 + "]" * 150, "9" * 9999, "[]"]),
        *(member(header(kind)) for kind in ("<U999999999", "f8,f8", "|O", "M8[s]", "?", "x")),
        *(member(header(shape=f"({n}, 4, 3)")) for n in (6, -5, 5.0, "'a'", "9" * 99)),
    ],
    "'x_train' is larger": [member(header(shape="(5, 4, 2)"))],
    r"image 2: .*\(5, 8\)": [jpegs([*GREY[:2], GREY[2][:5]])],
    "image 1": [jpegs([FILE, FILE[:-60], FILE]), jpegs([FILE, b"no image", FILE])],
    "3600000000 pixels": [jpegs([HUGE])],
    "offsets": [jpegs(GREY, change=lambda offsets: offsets[:-1]),
                jpegs(GREY, change=lambda offsets: offsets + 1),
                jpegs(GREY, change=lambda offsets: offsets[[0, 2, 1, 3]]),
                jpegs(GREY, change=lambda offsets: offsets.astype(float))],
}  # fmt: skip
X = idx_bytes(PIXELS)
IDX = {
    "train-images.* has fewer": [{"x": X[:-1]}],
    "train-images.* has more": [{"x": X + b"a"}],
    "other bytes": [{"x": b"\x01" + X[1:]}, {"x": idx_bytes(PIXELS, 0x07)}, {"x": X[:3]}],
    "truncated": [{"x": X[:9]}],
    r"shape \[5\] for 4 examples": [{"x": PIXELS[:4]}],
    r"uint8\[28, 9\] in x_train": [{"x": PIXELS[:5, :, :9]}],
    "x_train is empty": [{"x": PIXELS[:0]}],
    "train-images": [{"x": struct.pack(">BBBB", 0, 0, 8, 200) + bytes(800)}],
    "more than half": [{"x": struct.pack(">BBBB", 0, 0, 8, 3) + b"\xff" * 12}],
    "EB, more than half": [{"x": struct.pack(">BBBB", 0, 0, 8, 255) + b"\xff" * 1020}],
}
Y = forms.DIGITS
LETTERS = {"train": "emnist-letters-train", "test": "emnist-letters-test"}
LETTERS["read"] = {"split": "letters"}
EMNIST = {
    "train-images": [patch("emnist-digits-train-images-idx3-ubyte.gz", (b"", 15, b"\xff" * 9))],
    "labels uint8 from 0": [LETTERS | {"y": Y[:5]}],
    "has label 26": [LETTERS | {"y": Y[:5] + np.uint8(18), "y_test": Y[5:]}],
    r"y_train has shape \[5, 1\]": [{"y": Y[:5, None]}],
}
RED = forms.COLOURED[0]
LINKS = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE
CIFAR100 = {
    "train.bin: .*30739 bytes, not a multiple": [{"train.bin": forms.CIFAR100["train.bin"][:-1]}],
    "no file test.bin": [{"test.bin": b""}],
    r"labels \[\[0, 100\]\]": [{"train.bin": forms.record((0, 100), RED)}],
    r"labels \[\[20, 4\]\]": [{"test.bin": forms.record((20, 4), RED)}],
    "record 0 has another": [{"train.bin": forms.record((1, 4), RED)}],
    "3073 bytes": [{"train.bin": forms.CIFAR10["test_batch.bin"]}],
    "train.bin twice": [{"a/train.bin": b""}],
}
CIFAR100 = {n: [{"files": forms.CIFAR100 | c} for c in changes] for n, changes in CIFAR100.items()}
CIFAR100 |= {
    "a.tar.gz": [new("a.tar.gz", gzip.compress(b"no archive" * 99))],
    "no file train.bin": [{"files": dict.fromkeys(forms.CIFAR100, b""), "kind": k} for k in LINKS],
}


def sample(x, y, task="femnist", good=forms.WHITE):
    """The samples of one client of LEAF, and good ones for the test."""
    parts = {"train": {"a.json": {"zoe": (x, y)}}, "test": {"a.json": {"zoe": good}}}
    return parts | {"read": {"task": task}}


def play(*samples):
    return sample(*samples, "shakespeare", (["a" * 80], ["b"]))


def tweet(*samples):
    return sample(*samples, "sent140", ([["1", "Mon", "NO_QUERY", "someone", "some text"]], [1]))


def a_json(content):
    return {"train": {"a.json": content}}


PIXEL, ZOE = [[1.0] * 784], '"zoe": {"x": [[1.0]], "y": [1]}'
NOT_A_NUMBER = json.dumps({"user_data": {"zoe": {"x": [[float("nan")] * 784], "y": [1]}}})
LEAF = {
    "client 'zoe'": [
        *(sample([[v] * 784], [1]) for v in (0.5, 1.5, -1.0, "1", "a", {}, 2**60)),
        *(sample(PIXEL, [label]) for label in (True, "a", None, 62, 2**40, 1.5)),
        sample([1.0], [1]), sample(PIXEL + [[None] * 784], [1, 1]), sample("some", [1]),
        a_json(NOT_A_NUMBER),
    ],
    r"\[783\], not \[784\]": [sample([[1.0] * 783], [1])],
    "several lengths": [sample(PIXEL + [[1.0] * 783], [1, 1])],
    "different lengths": [sample(PIXEL, [1, 2])],
    "train: .*none of the clients": [sample([], [])],
    "sample 0 .*80 characters": [play(["a" * 79], ["b"]), play(["a" * 80], ["bc"])],
    "sample 1 .*80 characters": [play(["a" * 80] * 2, ["b", 7])],
    "'~'": [play(["a" * 79 + "~"], ["b"])],
    "sample 0 has no text": [tweet(["just text"], [1]), tweet([["1", "2", "3"]], [1])],
    "label 4": [tweet([["1", "2", "3", "4", "some text"]], [4])],
    r"b\.json: .*'zoe' is": [{"train": {f"{n}.json": {"zoe": forms.WHITE} for n in "ab"}}],
    "'zoe' twice": [a_json(f'{{"user_data": {{{ZOE}, {ZOE}}}}}')],
    "'x' twice": [a_json('{"user_data": {"zoe": {"x": [], "y": [1], "x": [[1.0]]}}}')],
    r"'\\x1b'": [a_json('{"user_data": {"\\u001b": {}}}')],
    r"train/a\.json": [
        a_json(content) for content in (
            "[1, 2]", '{"users": []}', b'{"user_data": {"\xff": {}}}', '{"user_data": []}',
            '{"user_data": {"zoe": {"x": ' + "[" * 100_000, '{"first": ' + "[" * 100_000,
            f'{{"user_data": {{{ZOE},}}}}', f'{{"user_data": {{{ZOE}}}}} []',
            '{"user_data": {1: {"x": [[1.0]], "y": [1]}}}',
        )
    ],
}  # fmt: skip
PACKED = gzip.compress(b'{"A": "some"}' * 9)
ROLES = {
    "object of strings": [b"[1, 2]", b'{"A": ["some"]}', b'{"A\\u001b": {"\\u202e": 1}}'],
    "utf-8": [b'{"A": "\xff"}'],
    "no role has 3 lines": [b"{}", b'{"A": "a"}'],
    "'A' twice": [b'{"A": "a", "A": "b"}'],
    "deep": [b'{"A": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"[" * 100_000],
    "a.json": [PACKED[:-9], PACKED[:12] + b"\xff" * 20, b'{"A": ' + b"9" * 5000 + b"}"],
    "'ï' is not among the 80": [json.dumps({"A": "na\u00efve\n" * 4})],
}
ROLES = {named: [{"content": each} for each in contents] for named, contents in ROLES.items()}
TEXT = json.dumps({"A": "a\n" * 10**6})
ROLES["90 GB"] = [{"content": TEXT, "read": {"window": 100_000, "stride": 2}}]


def one_client(**changes):
    """Other features of one client of three."""
    own = {k: v for k, v in (CLIENTS["f1_02"] | changes).items() if v is not None}
    return {"train": CLIENTS | {"f1_02": own}}


VALUES = {  # of all forms with features of clients
    "client 'f1_02'.*label -1": [one_client(label=np.array([0, -1, 0]))],
    "client 'f1_02'.*label 0.5": [one_client(label=np.array([0, 0.5, 0]))],
    "client 'f1_02'.*NaN": [one_client(pixels=np.full((3, 28, 28), np.nan, np.float32))],
    r"client 'f1_02'.*\[3, 9\]": [one_client(pixels=np.zeros((3, 9), np.float32))],
    r"client 'f1_02'.*\[3\]": [one_client(pixels=np.zeros(3, np.float32))],
    "client 'f1_02'.*pixels": [one_client(pixels=[b"a"] * 3)],
}


def sql(script, name="a"):
    return lambda folder: forms.execute(folder / f"{name}.sqlite", script)


def examples(*values):
    """Serialised examples of one client."""
    return {"train": {"a": [forms.example(**each) for each in values]}}


HALF, COUNT, BLOB = np.full(784, 0.5), "UPDATE client_metadata SET", "serialized_example_proto"
RENAMED = "ALTER TABLE examples RENAME COLUMN client_id TO user"
ROWS = f"SELECT 1 AS client_id, 1 AS split_name, randomblob(99999999) AS {BLOB}"
TFF_SQLITE = VALUES | {
    "no table 'examples'": [
        sql("DROP TABLE examples"),
        sql(f"DROP TABLE examples; CREATE VIEW examples AS {ROWS}"),
        sql("DROP TABLE examples; CREATE VIRTUAL TABLE examples USING fts5(client_id, split_name, "
            f"{BLOB})"),
    ],
    "no column 'client_id'": [
        sql(RENAMED),
        sql(f"{RENAMED}; ALTER TABLE examples ADD COLUMN client_id TEXT AS (user || 'a') VIRTUAL"),
    ],
    "split 'train', only o": [sql(f"{COUNT} split_name = 'o'")],
    "client 'f1_02': .*not the [24] examples": [
        sql(f"{COUNT} num_examples = {number} WHERE client_id = 'f1_02'") for number in (2, 4)],
    "many": [sql(f"{COUNT} num_examples = 'many'")],
    "not the -1 examples": [sql(f"{COUNT} num_examples = -1")],
    "twice": [sql("INSERT INTO client_metadata SELECT * FROM client_metadata")],
    "expected bytes": [sql(f"UPDATE examples SET {BLOB} = 5")],
    "Example": [sql(f"UPDATE examples SET {BLOB} = CAST(substr({BLOB}, 1, 99) AS BLOB)")],
    "split train": [sql(f"UPDATE examples SET {BLOB} = x''")],
    "utf-8": [sql(f"{COUNT} client_id = CAST(x'ff' AS TEXT)")],
    "no feature 'label'": [examples({"pixels": HALF})],
    "client 'a'.*label": [examples({"pixels": HALF, "label": 1}, {"pixels": HALF})],
    "'pixels' has lists": [
        examples({"pixels": HALF, "label": 1}, {"pixels": HALF[:9], "label": 1})],
    "no pixels of 0 to 255": [examples({"image": [256] * 3072, "label": 0})],
    "not a database": [new("a.sqlite", b"SQLite format 3\0" + b"\xff" * 999)],
}  # fmt: skip


def fedjax(data, count=3):
    """Other data of one client."""
    return {"train": CLIENTS | {"f1_02": (data, count)}}


def packed(content):
    return zlib.compress(pytest.importorskip("msgpack").packb(content))


def array(*parts, code=1):
    msgpack = pytest.importorskip("msgpack")
    return packed({"pixels": msgpack.ExtType(code, msgpack.packb(parts))})


GOOD = forms.fedjax_data(**CLIENTS["f1_02"])
FEDJAX_SQLITE = VALUES | {
    "client 'f1_02'": map(fedjax, [
        b"PK" + GOOD, zlib.compress(b"\xc1"), packed([1]), packed({"pixels": {}}), 5,
        zlib.compress(b"\x91" * 10**5), array((3,), "O", b"0" * 24), array((3,), "nothing", b""),
        array((10**12,), "float32", b"0000"), array((-1,), "float32", b""),
        array((), "float32", b"0000"), array((2,), [b"a"], code=4),
    ]),
    "client 'f1_02'.*cut off": [fedjax(GOOD[:-9])],
    "client 'f1_02'.*no array of the 2 examples": [fedjax(GOOD, count=2)],
    "client 'f1_02'.*type 2": [fedjax(array(code=2))],
    "client 'f1_02'.*'label'": [one_client(label=None)],
    "many": [sql("UPDATE federated_data SET num_examples = 'many'", "train")],
    "no clients": [sql("DELETE FROM federated_data", "train")],
    "no table 'federated_data'": [sql("DROP TABLE federated_data", "train")],
}  # fmt: skip


def h5(change, *arguments, **options):
    """Changes `train.h5`; the function also gets h5py and the path of a file with zeros."""

    def damage(folder):
        h5py = pytest.importorskip("h5py")
        with h5py.File(folder / "other.h5", "w") as other:
            other["secret"] = np.zeros((1, 28, 28), np.float32)
            other.create_group(FIRST)
        with h5py.File(folder / "train.h5", "r+") as file:
            change(file, h5py, folder / "other.h5", *arguments, **options)

    return damage


def anew(file, h5py, other, place, write=False, references=False, **options):
    """Writes an array anew, or declares it and writes one number."""
    del file[place], other
    kind = {"dtype": h5py.ref_dtype} if references else {}
    made = file.create_dataset(place, **options, **kind)
    if write:
        made[(0,) * made.ndim] = 1


def link(file, h5py, other, place, target, soft=False):
    del file[place]
    file[place] = h5py.SoftLink(target) if soft else h5py.ExternalLink(other, target)


def virtual(file, h5py, other):
    layout = h5py.VirtualLayout((1, 28, 28), np.float32)
    layout[:] = h5py.VirtualSource(other, "secret", (1, 28, 28))
    del file[INPUT]
    file.create_virtual_dataset(INPUT, layout)


def filtered(file, h5py, other):
    """A filter that only a plug-in has: its number is that of blosc, and it is optional here."""
    del file[INPUT], other
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((1, 28, 28))
    settings.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)
    space, kind = h5py.h5s.create_simple((1, 28, 28)), h5py.h5t.NATIVE_FLOAT
    h5py.Dataset(h5py.h5d.create(file.id, INPUT.encode(), kind, space, dcpl=settings))[:] = 0


def heap(place, value, **options):
    """Damages the heap of texts."""

    def change(folder):
        texts = {"a": {"snippets": [b"different snippet", b"different symbols"]}}
        forms.tff_hdf5(folder, texts, texts, **options)
        patch("train.h5", (b"GCOL", place, value))(folder)

    return change


FIRST = "examples/f0_01"
INPUT, TARGET = f"{FIRST}/pixels", f"{FIRST}/label"
PASSWD = [("/etc/passwd", 0, 28 * 28 * 4)]
HEAPS = [  # places in the heap, and what is written there
    (0, b"gcol"),  # the signature of the heap
    (4, b"\2"),  # its version
    (8, b"\xff" * 7),  # its size
    (24, b"\xa9"),  # the size of the first text, which ends in the empty gap: HDF5 does not end
    (24, b"\xff" * 8),
    (56, b"\0" * 16),  # a gap of no size
]
TFF_HDF5 = VALUES | {
    "'examples'": [h5(lambda file, *_: file.move("examples", "other"))],
    "no clients": [h5(lambda file, *_: [file["examples"].pop(client) for client in CLIENTS])],
    "'f0_01' has no features": [h5(lambda file, *_: [file.pop(p) for p in (INPUT, TARGET)])],
    "f1_02' has no 'label'": [h5(lambda file, *_: file["examples/f1_02"].pop("label"))],
    "f0_01' is no Group": [h5(anew, FIRST, data=3)],
    "'label' has": [h5(anew, TARGET, data=[1, 2])],
    "train.h5": [h5(anew, TARGET, data=1)],
    "pixels' holds neither": [
        h5(anew, INPUT, shape=(1,), references=True), h5(anew, INPUT, data=np.zeros(1, "i4,f4"))],
    "not written": [h5(anew, INPUT, shape=(1, 10**7, 10**7), dtype="f4")],
    "more than half": [
        h5(anew, INPUT, True, shape=(1, 10**7, 10**7), dtype="f4", chunks=(1, 9, 9))],
    "no 'f0_01', or only a link": [h5(link, FIRST, f"/{FIRST}")],
    "no 'pixels', or only a link": [
        h5(link, INPUT, "/secret"), h5(link, INPUT, "/examples/f1_02/pixels", soft=True)],
    "pixels' needs another file": [
        h5(virtual), h5(filtered), h5(anew, INPUT, shape=(1, 28, 28), dtype="f4", external=PASSWD)],
    "not an HDF5 file of TFF": [
        heap(*each, **options) for each in HEAPS for options in ({}, {"chunks": (1,)})],
}  # fmt: skip
BAD, FINE = ({"bytes": file, "path": None} for file in (b"\x89PNG\r\n", IMAGES[0]))
HF = {
    "split train: image 0": [{"image": [BAD] * 7}],
    "split train.*image 4": [{"image": [FINE] * 4 + [BAD] * 3}],
    "an image is missing": [{"image": [FINE] * 4 + [None] * 3}],
    "a number is missing": [{"label": [0, 1, None, 2, 0, 0, 0]}],
    "label -1": [{"label": [0, 1, 2, 2, -1, 0, 0]}],
    "split train.*vector": [{"vector": [[1]] * 4 + [[1, 2]] * 3, "read": {"x": "vector"}}],
    "a text is missing": [{"text": [None] * 7, "read": {"x": "text"}}],
    "hf ": [new("set/train/state.json", "[]"), lambda folder: shutil.rmtree(folder / "set")],
    "other": [new("set/dataset_dict.json", '{"splits": ["train", "other"]}')],
    "one split": [lambda f: shutil.copytree(f / "set/train", f / "set", dirs_exist_ok=True)],
}


def folder_for_file(folder):
    (folder / "c1.jpg").unlink()
    (folder / "c1.jpg").mkdir()


NOISE = forms.image(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8), "JPEG")
IMAGE_FOLDER = {
    "no column 'image_id'": [{"train": "user_id,class\nann,ant\n"}],
    "no column 'class'": [{"test": "image_id\nt1\n"}],
    "line 7 has not 3 fields": [{"train": TRAIN + "bo,b4\n"}],
    "line 7 has no image_id": [{"train": TRAIN + "bo,,ant\n"}],
    "client 'bo' has the image 'b1' twice": [{"train": TRAIN + "bo,b1,ant\n"}],
    "'t1' twice": [{"test": TEST + "t1,dog\n"}],
    "no row": [{"train": "user_id,image_id,class\n"}],
    "'class' twice": [{"train": "class," + TRAIN.replace("\n", ",c\n")}],
    "utf-8": [{"train": TRAIN.encode("utf-16")}],
    "end of data": [{"train": TRAIN + 'bo,"b4,ant\n'}],
    "'../a1' is no id": [{"train": TRAIN + "bo,../a1,ant\n"}],
    "'/etc/a' is no id": [{"train": TRAIN + "bo,/etc/a,ant\n"}],
    "train.csv|no id": [{"train": TRAIN + "bo,a\0b,ant\n"}],
    "client 'bo', b2.jpg": [
        new("b2.jpg", forms.image(PIXELS[0], "GIF")), new("b2.jpg", NOISE[:900])],
    "client 'cy', c1.jpg: .* directory": [folder_for_file],
}  # fmt: skip
ISIC = {
    "target=8": [[("a", 8, 0, "train")]],
    "center=6": [[("a", 0, 0, "train"), ("b", 0, 6, "test")]],
    "target=1.0": [[("a", "1.0", 0, "train")]],
    "fold='valid'": [[("a", 0, 1, "valid")]],
    "'a' twice": [[("a", 0, 1, "train"), ("a", 0, 1, "test")]],
    "fold=test": [[("a", 0, 1, "train")]],
    "'../a' is no id": [[("../a", 0, 1, "train"), ("b", 0, 1, "test")]],
}
ISIC = {named: [{"rows": rows} for rows in tables] for named, tables in ISIC.items()}
LINE = forms.isic_line("a", 0, 1, "train")
ISIC |= {
    "fold2='train_2'": [{"lines": [LINE[:-1] + "2"]}],
    "train_test_split": [{"lines": [LINE[:-9]]}],
    "no column 'fold2'": [{"header": "image,target,center,fold", "lines": []}],
}


def scan(content, kind="image"):
    return new(forms.ixi_file(16, "Guys", kind), content)


def of_header(**fields):
    return scan(forms.volume(forms.intensities(16), **fields))


VOXELS = gzip.decompress(forms.volume(forms.intensities(16)))
FED_IXI = {
    "IXI016.*no NIfTI-1": [
        scan(gzip.compress(b"no volume")), of_header(sizeof_hdr=1), of_header(magic=b"ni1")],
    "591 bytes, not 592": [scan(gzip.compress(VOXELS[:-1]))],
    "593 bytes, not 592": [scan(gzip.compress(VOXELS + b"a"))],
    r"\[4, 5\], no volume": [scan(forms.volume(forms.intensities(16)[0]))],
    "complex128": [scan(forms.volume(forms.intensities(16)[..., None, None] + 0j))],
    "NaN": [scan(forms.volume(np.full((6, 4, 5), np.nan)))],
    "has 592 bytes, not": [
        of_header(dim=[3, *[32767] * 3, *[1] * 4]), of_header(vox_offset=1e30)],
    "IXI016": [
        of_header(dim=[3, -6, -4, 5, *[1] * 4]), of_header(dim=[99, 6, 4, 5, *[1] * 4]),
        of_header(vox_offset=np.nan), of_header(datatype=12345)],
    "labels than 0 and 1": [scan(forms.volume(2 * np.ones((6, 4, 5), np.uint8)), "label")],
    "person 12 has no folder, or another row": [{"rows": [*IXI, IXI[1]]}],
    "person 13 has no folder": [{"rows": [*IXI, (13, 1, "HH", "train")]}],
    "IXI002": [{"rows": IXI[1:]}],
    "person 2 .*Manufacturer 1": [{"rows": [(2, 1, "HH", "test"), *IXI[1:]]}],
    "person 2 .*Manufacturer 3": [{"rows": [(2, 3, "HH", "test"), *IXI[1:]]}],
    "Split=valid": [{"rows": [(2, 0, "Guys", "valid"), *IXI[1:]]}],
    "metadata_tiny": [{"rows": []}],
    "Split=test": [{"rows": [(2, 0, "Guys", "train"), *IXI[1:]]}],
    "two folders of person 12": [lambda folder: (folder / "IXI012-HH-0001").mkdir()],
}  # fmt: skip
DAMAGES = {
    "npz": NPZ, "idx": IDX, "emnist": EMNIST, "cifar100": CIFAR100, "leaf": LEAF, "roles": ROLES,
    "tff_sqlite": TFF_SQLITE, "fedjax_sqlite": FEDJAX_SQLITE, "tff_hdf5": TFF_HDF5, "hf": HF,
    "image_folder": IMAGE_FOLDER, "fed_isic2019": ISIC, "fed_ixi": FED_IXI,
}  # fmt: skip
DAMAGES = {name: {key: [*each] for key, each in table.items()} for name, table in DAMAGES.items()}


def check(folder, name, named, change):
    """The damaged files are refused."""
    change = change if callable(change) else dict(change)
    options = {} if callable(change) else change.pop("read", {})
    FORMS[name].write(folder, **({} if callable(change) else change))
    if callable(change):
        change(folder)
    with refused(folder, named):
        load(FORMS[name], folder, **options)


def check_all(folder, name):
    for number, (named, changes) in enumerate(DAMAGES[name].items()):
        for each, change in enumerate(changes):
            own = folder / f"{number} {each}"
            own.mkdir()
            check(own, name, named, change)


@pytest.mark.parametrize("name", slow(DAMAGES))
def test_damages(tmp_path, name):
    check_all(tmp_path, name)


@pytest.mark.nightly
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", DAMAGES)
def test_damages_take_little_time_and_memory(tmp_path, name):
    check_all(tmp_path, name)


def zeros(folder, size=20 * 10**6):
    """An archive with many zeros, which it packs well."""
    forms.npz(folder, x_train=None)
    with zipfile.ZipFile(folder / "a.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        content = member(header(shape=f"({size}, 1)"), bytes(size))["x_train"]
        archive.writestr("x_train.npy", content)


TWENTY = struct.pack(">BBBBIII", 0, 0, 8, 3, 20, 1000, 1000)
WIDE = {"shape": (1, 1), "dtype": "f8", "maxshape": (None, 10**7), "chunks": (1, 10**7)}
SQLITE, IXI_BYTES = f"{READERS}.client_files.sqlite.host_memory", f"{READERS}.flamby._MAX_BYTES"
MILLION = 10**6
BOMBS = [
    ("npz", zeros, HOST, 30 * MILLION, "20 MB, more than half"),
    ("idx", lambda folder: forms.idx(folder, x=TWENTY + bytes(20 * MILLION), packed=True),
     HOST, MILLION, "20 MB, more than half"),
    ("roles", lambda folder: forms.roles(folder, gzip.compress(b'{"A": "' + b"a" * 30 * MILLION)),
     HOST, 64 * 5 * MILLION, "more than 5 MB"),
    ("fedjax_sqlite",
     lambda folder: forms.fedjax_sqlite(folder, **fedjax(zlib.compress(bytes(40 * MILLION)))),
     HOST, 64 * 5 * MILLION, "more than 5 MB"),
    ("fed_ixi", scan(gzip.compress(VOXELS + bytes(MILLION))), IXI_BYTES, 592, "592 bytes"),
    ("tff_sqlite", {"train": {"a": [bytes(MILLION)]}}, SQLITE, MILLION, "blob too big"),
    ("tff_hdf5", h5(anew, INPUT, True, **WIDE), HOST, 100 * MILLION, "80 MB, more than half"),
]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "change", "place", "limit", "named"), BOMBS)
def test_bombs(tmp_path, monkeypatch, bounded, name, change, place, limit, named):
    """Files that are small, and would take much memory."""
    bound(monkeypatch, place, limit)
    check(tmp_path, name, named, change)
