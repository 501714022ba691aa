"""Missing, damaged, oversized and hostile files: each reader refuses them in one line.

`DAMAGES` has for each reader what an error names, and the changes of the good files that give it:
a function of the folder, or what they are written with instead, where `read` are options.
"""

import functools
import gzip
import json
import os
import shutil
import struct
import sys
import tarfile
from pathlib import Path

import data_forms as forms
import numpy as np
import pytest
from data_forms import ARRAYS, CLIENTS, FORMS, IXI, PIXELS, TEST, TRAIN, idx_bytes, jpegs, refused

FILES = {  # those of the good files that are damaged one by one, if not all
    "hf": ["set/*/*"],
    "tfds": ["coloured/*/dataset_info.json", "coloured/*/*array_record*"],
    "fed_isic2019": ["train_test_split", "*/ISIC_0065613.jpg"],
    "fed_ixi": ["*.csv", "IXI016*/*/*"],
}
OTHERWISE = ["hf", "tfds", "leaf", "fed_ixi"]  # say that a file is missing


def load(form, folder, **options):
    """Reads all that a data set has."""
    data = form.read(folder, **options)
    sources = [part for part in (data.train, data.test) if hasattr(part, "examples_of")]
    for source in sources:
        source.check()
    for source in sources:
        for client in range(source.num_clients):
            source.examples_of(client)


def slow(names):
    """Parameters, of which those of libraries and of volumes are not for the quick tier."""
    marks = dict.fromkeys(("hf", "tfds", "fed_ixi"), pytest.mark.all)
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


@pytest.mark.parametrize("name", slow(FORMS))
def test_every_file(tmp_path, name):
    """It is empty, of another kind, cut, missing, or a device."""
    form = FORMS[name]
    form.write(tmp_path)
    load(form, tmp_path)
    paths = {path for each in FILES.get(name, ["**/*"]) for path in tmp_path.glob(each)}
    for path in filter(Path.is_file, sorted(paths)):
        content = path.read_bytes()
        kinds = b"", b"another kind" * 99, b"\x1f\x8b" * 99, b"PK\x03\x04" * 99
        for other in (*kinds, content[: len(content) * 2 // 5]):
            path.write_bytes(other)
            with refused(tmp_path):
                load(form, tmp_path)
        path.unlink()
        missing = "there is no such file|it has no .* but "
        with refused(tmp_path, None if name in OTHERWISE else missing):
            load(form, tmp_path)
        path.symlink_to(os.devnull)
        with refused(tmp_path, "it is a pipe or a device, not a regular file"):
            load(form, tmp_path)
        path.unlink()
        path.write_bytes(content)
    load(form, tmp_path)


NEEDED = {"hf": "datasets", "tfds": "tensorflow_datasets", "fed_ixi": "nibabel"}


@pytest.mark.parametrize("name", slow(NEEDED))
def test_a_package_that_is_not_installed(tmp_path, monkeypatch, name):
    FORMS[name].write(tmp_path)
    monkeypatch.setitem(sys.modules, NEEDED[name], None)
    package = NEEDED[name].replace("_", "-")
    with pytest.raises(ValueError, match=f"{name} needs the package {package}; run: pip install"):
        FORMS[name].read(tmp_path)


HOST, READERS = "base.files.host_memory", "data.readers"
IMAGES = [forms.image(pixels) for pixels in forms.SQUARES.values()]
LARGE = np.zeros((3, 64, 64), np.uint8)
LIMITS = [  # what bounds files, the smallest bound of good ones, and changes of these
    ("npz", HOST, 2 * (sum(array.nbytes for array in ARRAYS.values()) + 4 * 128), {}),
    ("npz", HOST, 2 * 3 * 64 * 64, jpegs(LARGE) | {"x_test": LARGE[:2]}),
    ("idx", HOST, 2 * 5 * 28 * 28, {}),
    ("cifar10", f"{READERS}.array_files.MAX_BYTES", 2 * 3073, {}),
    ("leaf", f"{READERS}.leaf.host_memory", 4 * 7959, {}),
    ("roles", HOST, 64 * 62, {}),
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


def member(header):
    """A file of NumPy's format 1.0 with any header."""
    text = header.encode("latin-1") + b"\n"
    start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
    return {"x_train": start + text + bytes(60)}


def header(kind="|u1", shape="(5, 4, 3)"):
    return f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}}}"


def zip_headers(place, value):
    return patch("a.npz", (b"PK\x03\x04", place, value), (b"PK\x01\x02", place + 2, value))


GREY = PIXELS[:3, :8, :8]
OFFSETS = lambda x: x[:-1], lambda x: x + 1, lambda x: x[[0, 2, 1, 3]], lambda x: x.astype(float)
FILE = forms.image(GREY[0], "JPEG")
DAMAGES = {}
DAMAGES["npz"] = {
    "no array 'x_train'": [{"x_train": None}],
    "no array 'who'": [{"read": {"users": "who"}}],
    "allow_pickle": [{"x_train": np.array([None] * 5)}],
    "it has an array twice": [patch("a.npz", *2 * [(b"y_train", 0, b"x_train")])],
    r"only \\x1b\[31m": [{"x_train": None, "\x1b[31m": np.zeros(3)}],
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
    "offsets": [jpegs(GREY, change=change) for change in OFFSETS],
}
X = idx_bytes(PIXELS)
DAMAGES["idx"] = {
    "train-images.* has fewer": [{"x": X[:-1]}],
    "train-images.* has more": [{"x": X + b"a"}],
    "other bytes": [{"x": b"\x01" + X[1:]}, {"x": idx_bytes(PIXELS, 0x07)}, {"x": X[:3]}],
    "multiple of element size": [{"x": X[:9]}],
    "train-images": [{"x": struct.pack(">BBBB", 0, 0, 8, 200) + bytes(800)}],
    "EB, more than half": [{"x": struct.pack(">BBBB", 0, 0, 8, 255) + b"\xff" * 1020}],
}
LETTERS = {"train": "emnist-letters-train", "test": "emnist-letters-test"}
DAMAGES["emnist"] = {
    "train-images": [patch("emnist-digits-train-images-idx3-ubyte.gz", (b"", 15, b"\xff" * 9))],
    "label 255 in example 1": [LETTERS | {"read": {"split": "letters"}}],
}
RED = forms.COLOURED[0]
CIFAR100 = {
    "train.bin: .*array of size 30739": [{"train.bin": forms.CIFAR100["train.bin"][:-1]}],
    "no file test.bin": [{"test.bin": b""}],
    "index 100 is out of bounds": [{"train.bin": forms.record((0, 100), RED)}],
    "record 0 has another": [
        {"train.bin": forms.record((1, 4), RED)},
        {"test.bin": forms.record((20, 4), RED)},
    ],
    "train.bin twice": [{"a/train.bin": b""}],
}
CIFAR100 = {n: [{"files": forms.CIFAR100 | c} for c in changes] for n, changes in CIFAR100.items()}
DAMAGES["cifar100"] = CIFAR100 | {
    "a.tar.gz": [new("a.tar.gz", gzip.compress(b"no archive" * 99))],
    "no file train.bin": [{"files": forms.CIFAR100, "kind": tarfile.SYMTYPE}],
}


def sample(x, y, task="femnist", good=forms.WHITE):
    """The samples of one client of LEAF, and good ones for the test."""
    parts = {"train": {"a.json": {"zoe": (x, y)}}, "test": {"a.json": {"zoe": good}}}
    return parts | {"read": {"task": task}}


def a_json(content):
    return {"train": {"a.json": content}}


TWEET = [["1", "Mon", "NO_QUERY", "someone", "some text"]], [1]
tweet = functools.partial(sample, task="sent140", good=TWEET)
play = functools.partial(sample, task="shakespeare", good=(["a" * 80], ["b"]))
PIXEL, ZOE = [[1.0] * 784], '"zoe": {"x": [[1.0]], "y": [1]}'
DAMAGES["leaf"] = {
    "client 'zoe'": [
        *(sample([[v] * 784], [1]) for v in (0.5, 1.5, -1.0, "1", "a", {}, 2**60, np.nan)),
        *(sample(PIXEL, [label]) for label in (True, "a", None, 62, 2**40, 1.5)),
        sample([1.0], [1]), sample(PIXEL + [[None] * 784], [1, 1]), sample("some", [1]),
    ],
    r"cannot reshape array of size 783": [sample([[1.0] * 783], [1])],
    "inhomogeneous": [sample(PIXEL + [[1.0] * 783], [1, 1])],
    "different lengths": [sample(PIXEL, [1, 2])],
    "train: .*none of the clients": [sample([], [])],
    "80 characters": [play(["a" * n], [y]) for n, y in ((79, "b"), (80, "bc"), (80, 7))],
    "'~'": [play(["a" * 79 + "~"], ["b"])],
    "sample 0 has no text": [tweet(["just text"], [1]), tweet([["1", "2", "3"]], [1])],
    "label 4": [tweet([["1", "2", "3", "4", "some text"]], [4])],
    r"b\.json: .*'zoe' is": [{"train": {f"{n}.json": {"zoe": forms.WHITE} for n in "ab"}}],
    "'zoe' twice": [a_json(f'{{"user_data": {{{ZOE}, {ZOE}}}}}')],
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
    "byte 7 is not UTF-8; save it in UTF-8, or": [b'{"A": "\xff"}'],
    "no role has 3 lines": [b"{}", b'{"A": "a"}'],
    "'A' twice": [b'{"A": "a", "A": "b"}'],
    "deep": [b'{"A": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"[" * 100_000],
    "a.json": [PACKED[:-9], PACKED[:12] + b"\xff" * 20, b'{"A": ' + b"9" * 5000 + b"}"],
    "'ï' is not among the 80": [json.dumps({"A": "na\u00efve\n" * 4})],
}
ROLES = {named: [{"content": each} for each in contents] for named, contents in ROLES.items()}
LONG = {"content": json.dumps({"A": "a\n" * 10**6}), "read": {"window": 100_000, "stride": 2}}
DAMAGES["roles"] = ROLES | {"90 GB": [LONG]}


def one_client(**changes):
    """Other features of one client of three."""
    own = {k: v for k, v in (CLIENTS["f1_02"] | changes).items() if v is not None}
    return {"train": CLIENTS | {"f1_02": own}}


def sql(script):
    return lambda folder: forms.execute(folder / "a.sqlite", script)


def examples(*values):
    """Serialised examples of one client."""
    return {"train": {"a": [forms.example(**each) for each in values]}}


HALF, COUNT, BLOB = np.full(784, 0.5), "UPDATE client_metadata SET", "serialized_example_proto"
FULL, DROP = {"pixels": HALF, "label": 1}, "DROP TABLE examples"
RENAMED = "ALTER TABLE examples RENAME COLUMN client_id TO user"
DAMAGES["tff_sqlite"] = {
    "client 'f1_02'.*label -1": [one_client(label=np.array([0, -1, 0]))],
    "client 'f1_02'.*nan": [one_client(pixels=np.full((3, 28, 28), np.nan, np.float32))],
    r"client 'f1_02'.*\[3, 9\]": [one_client(pixels=np.zeros((3, 9), np.float32))],
    "client 'f1_02'.*pixels": [one_client(pixels=[b"a"] * 3)],
    "no table 'examples' with the columns client_id": [
        sql(DROP),
        sql(f"{DROP}; CREATE VIEW examples AS SELECT 1 AS client_id"),
        sql(f"{DROP}; CREATE VIRTUAL TABLE examples USING fts5(client_id)"),
        sql(RENAMED),
        sql(f"{RENAMED}; ALTER TABLE examples ADD COLUMN client_id TEXT AS (user || 'a') VIRTUAL"),
    ],
    "split 'train', only o": [sql(f"{COUNT} split_name = 'o'")],
    "client 'f1_02': .*not have the (2|4|-1) examples": [
        sql(f"{COUNT} num_examples = {number} WHERE client_id = 'f1_02'") for number in (2, 4, -1)
    ],
    "many": [sql(f"{COUNT} num_examples = 'many'")],
    "'f0_01'. twice": [sql("INSERT INTO client_metadata SELECT * FROM client_metadata")],
    "expected bytes": [sql(f"UPDATE examples SET {BLOB} = 5")],
    "Example": [sql(f"UPDATE examples SET {BLOB} = CAST(substr({BLOB}, 1, 99) AS BLOB)")],
    "split train": [sql(f"UPDATE examples SET {BLOB} = x''")],
    "byte 0 is not UTF-8; ": [sql(f"{COUNT} client_id = CAST(x'ff' AS TEXT)")],
    "no feature 'label'": [examples({"pixels": HALF})],
    "client 'a'.*label": [examples(FULL, {"pixels": HALF})],
    "'pixels' has lists": [examples(FULL, FULL | {"pixels": HALF[:9]})],
    "not pixels of 0 to 255": [examples({"image": [256] * 3072, "label": 0})],
    "not a database": [new("a.sqlite", b"SQLite format 3\0" + b"\xff" * 999)],
}


BAD, FINE = ({"bytes": file, "path": None} for file in (b"\x89PNG\r\n", IMAGES[0]))
DAMAGES["hf"] = {
    "split train: image 0": [{"image": [BAD] * 7}],
    "split train.*image 4": [{"image": [FINE] * 4 + [BAD] * 3}],
    "image: .*a value is missing": [{"image": [FINE] * 4 + [None] * 3}],
    "a number is missing": [{"label": [0, 1, None, 2, 0, 0, 0]}],
    "split train.*vector": [{"vector": [[1]] * 4 + [[1, 2]] * 3, "read": {"x": "vector"}}],
    "text: .*a value is missing": [{"text": [None] * 7, "read": {"x": "text"}}],
    "hf ": [new("set/train/state.json", "[]"), lambda folder: shutil.rmtree(folder / "set")],
    "other": [new("set/dataset_dict.json", '{"splits": ["train", "other"]}')],
    "load_from_disk": [lambda f: shutil.copytree(f / "set/train", f / "set", dirs_exist_ok=True)],
}


DAMAGES["image_folder"] = {
    "0 columns 'image_id' among user_id, class": [{"train": "user_id,class\nann,ant\n"}],
    "line 7 does not have 3 fields": [{"train": TRAIN + f"bo,{a}\n"} for a in ("b4", ",ant")],
    "client 'bo' has the image 'b1' twice": [{"train": TRAIN + "bo,b1,ant\n"}],
    "client '' has the image 't1' twice": [{"test": TEST + "t1,dog\n"}],
    "it has no row below the header": [{"train": "user_id,image_id,class\n"}],
    "2 columns 'class'": [{"train": "class," + TRAIN.replace("\n", ",c\n")}],
    "is not UTF-8": [{"train": TRAIN.encode("utf-16")}],
    "end of data": [{"train": TRAIN + 'bo,"b4,ant\n'}],
    "'(../a1|/etc/a)' is not an": [{"train": TRAIN + f"bo,{a},ant\n"} for a in ("../a1", "/etc/a")],
    "train.csv|not an id": [{"train": TRAIN + "bo,a\0b,ant\n"}],
    "client 'bo', b2.jpg": [new("b2.jpg", forms.image(PIXELS[0], "GIF"))],
}
ISIC = {
    "target=8": [[("a", 8, 0, "train")]],
    "center=6": [[("a", 0, 0, "train"), ("b", 0, 6, "test")]],
    "fold='valid'": [[("a", 0, 1, "valid")]],
    "'a' twice": [[("a", 0, 1, "train"), ("a", 0, 1, "test")]],
    "has no row with fold=test": [[("a", 0, 1, "train")]],
}
ISIC = {named: [{"rows": rows} for rows in tables] for named, tables in ISIC.items()}
LINE = forms.isic_line("a", 0, 1, "train")
DAMAGES["fed_isic2019"] = ISIC | {
    "fold2='train_2'": [{"lines": [LINE[:-1] + "2"]}],
    "train_test_split": [{"lines": [LINE[:-9]]}],
    "0 columns 'fold2'": [{"header": "image,target,center,fold", "lines": []}],
}


def scan(content, kind="image"):
    return new(forms.ixi_file(16, "Guys", kind), content)


def of_header(**fields):
    return scan(forms.volume(forms.intensities(16), **fields))


VOXELS = gzip.decompress(forms.volume(forms.intensities(16)))
DAMAGES["fed_ixi"] = {
    "IXI016.*not a NIfTI-1 file": [
        scan(gzip.compress(b"no volume")), of_header(sizeof_hdr=1), of_header(magic=b"ni1")],
    "59[13] bytes, .* 592": [scan(gzip.compress(each)) for each in (VOXELS[:-1], VOXELS + b"a")],
    r"\[4, 5\], not a whole volume": [scan(forms.volume(forms.intensities(16)[0]))],
    "complex128": [scan(forms.volume(forms.intensities(16)[..., None, None] + 0j))],
    "NaN": [scan(forms.volume(np.full((6, 4, 5), np.nan)))],
    "has 592 bytes, and by": [
        of_header(dim=[3, *[32767] * 3, *[1] * 4]), of_header(vox_offset=1e30)],
    "IXI016": [
        of_header(dim=[3, -6, -4, 5, *[1] * 4]), of_header(dim=[99, 6, 4, 5, *[1] * 4]),
        of_header(vox_offset=np.nan), of_header(datatype=12345)],
    "labels than 0 and 1": [scan(forms.volume(2 * np.ones((6, 4, 5), np.uint8)), "label")],
    "not one row and folder for person 12": [{"rows": [*IXI, IXI[1]]}],
    "not one row and folder for person 2": [{"rows": IXI[1:]}],
    "person 2 .*Manufacturer": [{"rows": [(2, n, "HH", "test"), *IXI[1:]]} for n in (1, 3)],
    "Split=valid": [{"rows": [(2, 0, "Guys", "valid"), *IXI[1:]]}],
    "folder for person 12;": [lambda folder: (folder / "IXI012-HH-0001").mkdir()],
}  # fmt: skip


def check(folder, name, named, change):
    """The damaged files are refused."""
    changes, damage = ({}, change) if callable(change) else (change, lambda folder: None)
    FORMS[name].write(folder, **{key: value for key, value in changes.items() if key != "read"})
    damage(folder)
    with refused(folder, named):
        load(FORMS[name], folder, **changes.get("read", {}))


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", slow(DAMAGES))
def test_damages(tmp_path, name):
    """They take little time and memory."""
    for number, (named, changes) in enumerate(DAMAGES[name].items()):
        for each, change in enumerate(changes):
            own = tmp_path / f"{number} {each}"
            own.mkdir()
            check(own, name, named, change)


def test_a_header_of_a_huge_array(tmp_path):
    """NumPy counts memory that it could not allocate, which `bounded` would find."""
    check(tmp_path, "npz", "allocate", member(header(shape=f"({10**13}, 4, 3)")))


SQLITE = f"{READERS}.sqlite.host_memory"
ZEROS = bytes(6 * 10**6)
BOMBS = [
    ("roles", {"content": gzip.compress(b'{"A": "' + ZEROS)}, HOST, 64 * 10**6, "more than 1 MB"),
    ("tff_sqlite", {"train": {"a": [bytes(10**6)]}}, SQLITE, 10**6, "blob too big"),
]


@pytest.mark.parametrize(("name", "change", "place", "limit", "named"), BOMBS)
def test_bombs(tmp_path, monkeypatch, name, change, place, limit, named):
    """Files that are small, and would take much memory."""
    bound(monkeypatch, place, limit)
    check(tmp_path, name, named, change)
