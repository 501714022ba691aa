"""Small data sets in the form of each reader, written from the descriptions of these forms."""

import contextlib
import functools
import gzip
import io
import json
import shutil
import sqlite3
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from fedjax_algos.data import datasets
from fedjax_algos.data.readers import sqlite

RNG = np.random.default_rng(0)


def image(pixels, kind="PNG", **options):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()


def decoded(content):
    """The pixels of a file, which for JPEG are not those that were saved."""
    return np.asarray(Image.open(io.BytesIO(content)))


def write(folder, files):
    """Writes files of bytes or text by their paths in a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


# .npz files
ARRAYS = {
    "x_train": RNG.integers(0, 256, (5, 4, 3), np.uint8),
    "y_train": np.array([2, 0, 1, 2, 2], np.int64),
    "x_test": RNG.integers(0, 256, (2, 4, 3), np.uint8),
    "y_test": np.array([0.0, 3.0]),
}


def npz(folder, **changes):
    """`a.npz`; a change is an array, the bytes of a member, or None for no such member."""
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        for name, value in (ARRAYS | changes).items():
            content = io.BytesIO()
            if not isinstance(value, bytes):
                np.save(content, value)
            if value is not None:
                archive.writestr(f"{name}.npy", content.getvalue() or value)


def jpegs(images, part="train", change=lambda offsets: offsets):
    """Arrays of files instead of `x_train`; an image is pixels or the bytes of a file."""
    files = [each if isinstance(each, bytes) else image(each, "JPEG") for each in images]
    arrays = {f"jpeg_{part}": np.frombuffer(b"".join(files), np.uint8), f"x_{part}": None}
    offsets = change(np.cumsum([0, *map(len, files)]))
    return arrays | {f"offset_{part}": offsets, f"y_{part}": np.zeros(len(files))}


# IDX and CIFAR
PIXELS = RNG.integers(0, 256, (7, 28, 28), np.uint8)
DIGITS = np.array([3, 0, 4, 1, 9, 5, 2], np.uint8)
COLOURED = RNG.integers(0, 256, (12, 32, 32, 3), np.uint8)
# coarse and fine labels, as the class names of cifar-100-binary have them: two coarse ones, whole
PAIRS = [*((0, fine) for fine in (4, 30, 55, 72, 95)), *((1, f) for f in (1, 32, 67, 73, 91))]


def idx_bytes(array, kind=0x08):
    lengths = b"".join(struct.pack(">I", n) for n in array.shape)
    return struct.pack(">BBBB", 0, 0, kind, array.ndim) + lengths + array.tobytes()


def idx(folder, x=PIXELS[:5], y=DIGITS[:5], x_test=PIXELS[5:], y_test=DIGITS[5:], **names):
    """Four files of arrays or bytes; `train`, `test` are their names' starts; `packed`: gzipped."""
    packed = names.get("packed", False)
    for part, start, arrays in (("train", "train", (x, y)), ("test", "t10k", (x_test, y_test))):
        for kind, array in zip(("images-idx3", "labels-idx1"), arrays, strict=True):
            content = array if isinstance(array, bytes) else idx_bytes(array)
            name = f"{names.get(part, start)}-{kind}-ubyte" + ".gz" * packed
            write(folder, {name: gzip.compress(content, mtime=0) if packed else content})


def record(labels, pixels):
    """The bytes of a record of CIFAR: labels, then the red, green and blue pixels by rows."""
    return bytes(labels) + b"".join(pixels[..., colour].tobytes() for colour in range(3))


CIFAR10 = {
    f"data_batch_{n}.bin": record([n], COLOURED[n]) + record([9], COLOURED[0]) for n in range(1, 6)
}
CIFAR10["test_batch.bin"] = record([7], COLOURED[10])
CIFAR100 = {
    "train.bin": b"".join(map(record, PAIRS, COLOURED)),
    "test.bin": b"".join(map(record, [(19, 41), (0, 4)], COLOURED[10:])),
}


def tar(folder, files=CIFAR100, kind=tarfile.REGTYPE):
    """`a.tar.gz` of files, or of links to another file."""
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size, member.type, member.linkname = len(content), kind, "/etc/hostname"
            archive.addfile(member, io.BytesIO(content))


# LEAF
WHITE = ([[1.0] * 784], [1])


def leaf(folder, train=None, test=None):
    """Files of each part from {file: {user: (x, y)}}, or one file of the given content."""
    for part, files in (("train", train), ("test", test)):
        for name, content in (files or {"a.json": {"ann": WHITE, "zoe": WHITE}}).items():
            text = content
            if isinstance(content, dict):
                data = {user: {"x": x, "y": y} for user, (x, y) in content.items()}
                names = {"users": [*data], "num_samples": [len(y) for _, y in content.values()]}
                text = json.dumps(names | {"user_data": data})
            write(folder, {f"{part}/{name}": text})


# Files of clients of TFF
COUNTS = {"f9_00": 2, "f0_01": 1, "f1_02": 3}  # TFF orders the names
CLIENTS = {
    name: {"pixels": RNG.random((n, 28, 28), np.float32), "label": RNG.integers(0, 5, n)}
    for name, n in COUNTS.items()
}
TFF_TABLES = """
CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB);
CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER);
"""


def execute(path, script, rows=()):
    """Runs a script, and then adds rows (table, values)."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(f"PRAGMA synchronous = off; {script}")
        for table, values in rows:
            connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", values)


def example(**features):
    """A serialised `tf.train.Example`; the test of golden bytes holds the form by itself."""
    made = sqlite._example_type()()
    for name, values in features.items():
        entry, array = made.features.feature.add(key=name).value, np.ravel(values)
        kinds = {"S": entry.texts, "f": entry.floats, "i": entry.integers}
        kinds[array.dtype.kind].value.extend(array.tolist())
    return made.SerializeToString()


def tff_sqlite(folder, train=CLIENTS, test=CLIENTS, splits=("train", "test")):
    """`a.sqlite`; a client has features, or its serialised examples."""
    rows = []
    for split, clients in zip(splits, (train, test), strict=True):
        for client, own in clients.items():
            made = own
            if isinstance(own, dict):
                each = zip(*own.values(), strict=True)
                made = [example(**dict(zip(own, values, strict=True))) for values in each]
            rows += [("examples", (split, client, row)) for row in made]
            rows.append(("client_metadata", (client, split, len(made))))
    (folder / "a.sqlite").unlink(missing_ok=True)
    execute(folder / "a.sqlite", TFF_TABLES, rows)


# Hugging Face and TFDS
SMALL = RNG.integers(0, 256, (7, 6, 4, 3), np.uint8)  # five for training and two for the test
HF = {
    "image": [{"bytes": image(pixels), "path": None} for pixels in SMALL],
    "label": [2, 0, 1, 2, 0, 0, 2],
    "writer": ["b", "a", "b", "c", "a", "a", "c"],
    "number": [10, 10, 9, 9, 8, 10, 9],
    "vector": RNG.integers(0, 256, (7, 3)).tolist(),
    "grid": [np.full((2, 2), i / 4, np.float32) for i in range(7)],
    "text": ["good good film", "bad film", "good", "", "ugly", "bad film", ""],
}


CACHE = tempfile.TemporaryDirectory()


def hf_tables(without=(), **changes):
    """The package, and its tables for training and test; changes are values of all seven rows."""
    package = pytest.importorskip("datasets")
    package.disable_progress_bars()
    package.config.HF_HUB_OFFLINE, package.config.HF_DATASETS_CACHE = True, CACHE.name
    kinds = {
        "image": package.Image(),
        "label": package.ClassLabel(names=["cat", "dog", "owl", "cow"]),
        "writer": package.Value("string"),
        "number": package.Value("int32"),
        "vector": package.List(package.Value("uint8")),
        "grid": package.Array2D((2, 2), "float32"),
        "text": package.Value("string"),
    }
    tables = {}
    for part, rows in (("train", slice(5)), ("test", slice(5, 7))):
        values = {k: v[rows] for k, v in (HF | changes).items() if k not in without}
        features = package.Features({key: kinds[key] for key in values})
        tables[part] = package.Dataset.from_dict(values, features=features)
    return package, tables


def hf(folder, without=(), **changes):
    """The folder that `save_to_disk` writes."""
    package, tables = hf_tables(without, **changes)
    shutil.rmtree(folder / "set", ignore_errors=True)
    package.DatasetDict(tables).save_to_disk(folder / "set")


REVIEWS = {  # text, author
    "train": [("good good film", "b"), ("bad film", "a"), ("good", "b"), ("", "c")],
    "test": [("good bad ugly", "a"), ("film", "d")],
}


def _rows(name, part):
    """The examples of a set of TFDS; the labels of images are 6, 5 and so on."""
    if name == "Reviews":
        for i, (text, author) in enumerate(REVIEWS[part]):
            numbers = {"stars": i, "year": 1999 + i % 2, "scores": np.float32([i, 0.5])}
            yield f"{i}", numbers | {"review": text, "author": author}
        return
    for i, pixels in enumerate(SMALL[:5] if part == "train" else SMALL[5:]):
        yield f"{i}", {"image": io.BytesIO(image(pixels)), "label": 6 - i}


@functools.cache
def _tfds():
    """Sets of images of one shape (`coloured`) and of several (`ragged`), and of texts."""
    package = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record")
    of = package.features
    one, many = (of.Image(shape=s, encoding_format="png") for s in ((6, 4, 3), (None, None, 3)))
    label, scores = of.ClassLabel(num_classes=7), of.Tensor(shape=(2,), dtype=np.float32)
    texts = {"review": of.Text(), "stars": np.int64, "author": of.Text(), "year": np.int32}
    sets = {"Coloured": {"image": one, "label": label}, "Ragged": {"image": many, "label": label}}
    sets["Reviews"] = texts | {"scores": scores}

    class Made(package.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = package.core.Version("1.0.0")

        def _info(self):
            features = of.FeaturesDict(sets[type(self).__name__])
            return package.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager):
            return {part: self._generate_examples(part) for part in ("train", "test")}

        def _generate_examples(self, part):
            return _rows(type(self).__name__, part)

    folder = tempfile.TemporaryDirectory()
    for name in sets:
        builder = type(name, (Made,), {})(data_dir=folder.name, file_format="array_record")
        builder.download_and_prepare()
    return folder


def tfds(folder):
    """Copies of the sets, which are made once."""
    shutil.copytree(_tfds().name, folder, dirs_exist_ok=True)


# Images in folders, and volumes
TRAIN = "user_id,image_id,class\nbo,b1,cat\nann,a1,ant\nbo,b2,ant\ncy,c1,dog\nbo,b3,bee\n"
TEST = "image_id,class\nt1,dog\nt2,ant\n"
IDS = ("b1", "a1", "b2", "c1", "b3", "t1", "t2")
SQUARES = dict(zip(IDS, RNG.integers(0, 256, (7, 8, 8, 3), np.uint8), strict=True))


def image_folder(folder, train=TRAIN, test=TEST):
    images = {f"{name}.jpg": image(pixels) for name, pixels in SQUARES.items()}
    write(folder, {"train.csv": train, "test.csv": test, **images})


ISIC_HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"
ISIC = [  # (image, class, centre, fold); as in FLamby's file, in no order
    ("ISIC_0065613", 1, 0, "train"),
    ("ISIC_0032511", 0, 2, "train"),
    ("ISIC_0063710", 2, 0, "test"),
    ("ISIC_0012669_downsampled", 7, 4, "train"),
    ("ISIC_0058767", 2, 0, "train"),
    ("ISIC_0032885", 1, 2, "test"),
]


def isic_line(name, target, centre, fold):
    one_hot = ",".join(str(float(target == c)) for c in range(9))
    return f"{name},{one_hot},{target},{centre},{fold},{fold}_{centre}"


@functools.cache
def isic_image(number):
    smooth = np.linspace(0, 200, 298)[None, :, None] + np.zeros((224, 298, 3)) + 5 * number
    return image(smooth.astype(np.uint8), "JPEG", quality=95)


def fed_isic2019(folder, rows=ISIC, header=ISIC_HEADER, lines=None):
    lines = [isic_line(*row) for row in rows] if lines is None else lines
    place = "ISIC_2019_Training_Input_preprocessed"
    images = {f"{place}/{row[0]}.jpg": isic_image(i) for i, row in enumerate(ISIC)}
    write(folder, images | {"train_test_split": "\n".join([header, *lines]) + "\n"})


IXI = [  # (number, Manufacturer, centre, split)
    (2, 0, "Guys", "test"),
    (12, 1, "HH", "train"),
    (16, 0, "Guys", "train"),
    (35, 2, "IOP", "train"),
    (20, 0, "Guys", "train"),
]


def intensities(number):
    return np.random.default_rng(number).integers(0, 1000, (6, 4, 5)).astype(np.int16)


def brain(number):
    return (np.random.default_rng(number).random((6, 4, 5)) < 0.8).astype(np.uint8)


def volume(voxels, **header):
    """A gzipped NIfTI-1 file, of which fields of the header are replaced."""
    nibabel = pytest.importorskip("nibabel")
    content = nibabel.Nifti1Image(voxels, np.eye(4)).to_bytes()
    fields = nibabel.Nifti1Header(content[:348], check=False)
    for name, value in header.items():
        fields[name] = value
    return gzip.compress(fields.binaryblock + content[348:], mtime=0)


def ixi_file(number, centre, kind="image"):
    """The path of a person's volume, or of the mask for the kind `label`."""
    name = f"IXI{number:03}-{centre}-{800 + number:04}"
    return f"{name}/{'T1' if kind == 'image' else kind}/{name}_{kind}.nii.gz"


def fed_ixi(folder, rows=IXI):
    lines = [f"{number},{maker},{split}" for number, maker, _, split in rows]
    table = "\n".join(["Patient ID,Manufacturer,Split", *lines])
    write(folder, {"metadata_tiny.csv": table, "IXI.xls": b""})  # what else the archive has
    for number, _, centre, _ in IXI:
        write(folder, {ixi_file(number, centre): volume(intensities(number))})
        write(folder, {ixi_file(number, centre, "label"): volume(brain(number))})


def roles(folder, content=None):
    lines = {"A": "some\nlines\nof a text", "B": "and\nmore\nlines of it"}
    write(folder, {"a.json": content or json.dumps(lines)})


class Form(NamedTuple):
    """How a reader's good files are written, and its options, which name them."""

    name: str
    write: Callable[..., None]  # (folder, **changes)
    options: Callable[[Path], dict[str, Any]]  # of the folder

    def read(self, folder: Path, **options):
        """The data set, whose clients are not read yet."""
        return datasets[self.name](**(self.options(folder) | options))


PARTS = ("train", "test")
DIGITS_ONLY = functools.partial(idx, **{p: f"emnist-digits-{p}" for p in PARTS}, packed=True)
FORMS = [
    Form("npz", npz, lambda at: {"path": at / "a.npz"}),
    Form("idx", idx, lambda at: {"path": at}),
    Form("emnist", DIGITS_ONLY, lambda at: {"path": at, "split": "digits"}),
    Form("cifar10", functools.partial(write, files=CIFAR10), lambda at: {"path": at}),
    Form("cifar100", tar, lambda at: {"path": at / "a.tar.gz"}),
    Form("leaf", leaf, lambda at: {"path": at, "task": "femnist"}),
    Form("roles", roles, lambda at: {"path": at / "a.json", "window": 3}),
    Form("tff_sqlite", tff_sqlite, lambda at: {"path": at / "a.sqlite"}),
    Form("hf", hf, lambda at: {"name": str(at / "set")}),
    Form("tfds", tfds, lambda at: {"data_dir": str(at), "name": "coloured"}),
    Form("image_folder", image_folder, lambda at: {"path": at, "image_size": 8, "shorter_side": 8}),
    Form("fed_isic2019", fed_isic2019, lambda at: {"path": at}),
    Form("fed_ixi", fed_ixi, lambda at: {"path": at}),
]
FORMS = {form.name: form for form in FORMS}


@contextlib.contextmanager
def refused(folder, named=None):
    """A block that raises an error of one line, which names the folder and matches `named`."""
    with pytest.raises(ValueError, match=named) as error:
        yield
    assert str(error.value).isprintable()
    assert str(folder) in str(error.value)
