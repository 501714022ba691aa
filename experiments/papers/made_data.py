"""Makes small data in the formats of the papers' large tasks, for the stand-ins `small_*.toml`.

COMMAND   python experiments/papers/made_data.py results/made
EXPECTED  the folders landmarks, inaturalist, stackoverflow, IXI_sample and fed_isic2019 in it
TIME      two seconds on one CPU core; 15 MB in 3,000 files

The files have the layouts, names and columns of the originals, so the same readers read them.
What is in them is drawn at random from a seed: images whose pattern tells the class, with a tint of
each user; texts in which the next word depends on the last one and on the user's topic; volumes of
ellipsoids. It needs the extra `medical` for the volumes.
"""

import argparse
import contextlib
import csv
import sqlite3
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

CLASSES = 10
CENTRES = (60, 30, 25, 20, 15, 10)  # training images of Fed-ISIC2019's centres
HOSPITALS = (("Guys", 8), ("HH", 5), ("IOP", 3))  # training volumes of Fed-IXI's clients
WORDS, TOPICS = 60, 4
TABLES = """
CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL,
  serialized_example_proto BLOB NOT NULL);
CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id);
CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL,
  num_examples INTEGER NOT NULL);
"""


def draw_image(rng, label, tint):
    """uint8[36, 48, 3]: a coarse pattern that is the same for all images of a class, and noise."""
    pattern = np.random.default_rng(label).integers(80, 176, (3, 4, 3))
    pixels = np.kron(pattern, np.ones((12, 12, 1))) + tint + rng.normal(0, 50, (36, 48, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def write_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=90)


def write_table(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_photos(folder, rng, train, users, photos, path_of):
    """Photos by photographer, who have three classes each, and test images without photographer."""
    rows = []
    for user in range(users):
        own, tint = rng.choice(CLASSES, 3, replace=False), rng.normal(0, 20, 3)
        labels = rng.choice(own, rng.integers(*photos))
        rows += [(user, f"{rng.integers(2**63):016x}", label, tint) for label in labels]
    test = [("", f"{rng.integers(2**63):016x}", label % CLASSES, 0.0) for label in range(200)]
    for _, image, label, tint in rows + test:
        write_image(folder / path_of(image, label), draw_image(rng, label, tint))
    write_table(folder / train, ("user_id", "image_id", "class"), [row[:3] for row in rows])
    write_table(folder / "test.csv", ("image_id", "class"), [row[1:3] for row in test])


def write_landmarks(folder, rng):
    def path_of(image, label):
        return f"{image[0]}/{image[1]}/{image[2]}/{image}.jpg"

    write_photos(folder, rng, "federated_train.csv", 40, (8, 32), path_of)


def write_inaturalist(folder, rng):
    def path_of(image, label):
        return f"train_val_images/{('Aves', 'Plantae')[label % 2]}/species {label}/{image}.jpg"

    write_photos(folder, rng, "federated_train_user_120k.csv", 120, (4, 16), path_of)


def write_fed_isic2019(folder, rng):
    rows = []
    for centre, count in enumerate(CENTRES):
        tint, labels = rng.normal(0, 20, 3), rng.choice(8, count + count // 4)
        for number, label in enumerate(labels):
            fold = "train" if number < count else "test"
            rows.append((f"ISIC_{len(rows):07}", label, centre, fold, f"{fold}_{centre}"))
            path = folder / "ISIC_2019_Training_Input_preprocessed" / f"{rows[-1][0]}.jpg"
            write_image(path, draw_image(rng, label, tint))
    write_table(folder / "train_test_split", ("image", "target", "center", "fold", "fold2"), rows)


def write_ixi(folder, rng):
    places = np.moveaxis(np.indices((41, 22, 27)), 0, -1) / (41, 22, 27) - 0.5  # half of each side
    rows = []
    for maker, (hospital, count) in enumerate(HOSPITALS):
        brightness = rng.uniform(200, 400)
        for number in range(count + 2):
            person = len(rows) + 1
            radii, centre = rng.uniform(0.25, 0.4, 3), rng.normal(0, 0.05, 3)
            brain = (((places - centre) / radii) ** 2).sum(-1) < 1
            volume = brightness * (1 + brain) + rng.normal(0, 100, brain.shape)
            name = f"IXI{person:03}-{hospital}-{800 + person:04}"
            for part, kind, voxels in (
                ("T1", "image", volume.astype(np.int16)),
                ("label", "label", brain.astype(np.uint8)),
            ):
                (folder / name / part).mkdir(parents=True)
                path = folder / name / part / f"{name}_{kind}.nii.gz"
                nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), path)
            rows.append((person, maker, "train" if number < count else "test"))
    write_table(folder / "metadata_tiny.csv", ("Patient ID", "Manufacturer", "Split"), rows)


def field(number, content):
    """A field of bytes in a protocol buffer; of at most 16,383 bytes."""
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([size % 128 + 128, size // 128])
    return bytes([number << 3 | 2]) + length + content


def serialised(text):
    """A `tf.train.Example` with the text as its feature `tokens`."""
    value = field(1, field(1, text.encode()))  # a list of texts with one text
    return field(1, field(1, field(1, b"tokens") + field(2, value)))


def write_stackoverflow(folder, rng):
    """Sentences of a Markov chain: a word has six successors, of which a topic prefers two."""
    folder.mkdir(parents=True)
    successors = rng.integers(0, WORDS, (WORDS, 6))
    preferred = rng.dirichlet(np.full(6, 0.3), (TOPICS, WORDS))

    def sentence(topic):
        words = [int(rng.integers(WORDS))]
        for _ in range(rng.integers(4, 19)):
            words.append(int(rng.choice(successors[words[-1]], p=preferred[topic, words[-1]])))
        return " ".join(f"word{word}" for word in words)

    sizes = {"train": (60, (20, 60)), "heldout": (5, (5, 10)), "test": (20, (5, 20))}
    with contextlib.closing(sqlite3.connect(folder / "stackoverflow.sqlite")) as file, file:
        file.executescript(TABLES)
        for split, (users, range_of_counts) in sizes.items():
            for user in range(users):
                client, count = f"{user:08}", int(rng.integers(*range_of_counts))
                texts = [sentence(user % TOPICS) for _ in range(count)]
                file.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, count))
                rows = [(split, client, serialised(text)) for text in texts]
                file.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    lines = [f"word{word} {WORDS - word}\n" for word in range(WORDS)]
    (folder / "stackoverflow.word_count").write_text("".join(lines))


WRITERS = {
    "landmarks": write_landmarks,
    "inaturalist": write_inaturalist,
    "stackoverflow": write_stackoverflow,
    "IXI_sample": write_ixi,
    "fed_isic2019": write_fed_isic2019,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="new folders are made in it")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for number, (name, write) in enumerate(WRITERS.items()):
        folder = arguments.folder / name
        if folder.exists():
            parser.error(f"{folder} exists; remove it, or give another folder")
        write(folder, np.random.default_rng([arguments.seed, number]))
        print(folder)


if __name__ == "__main__":
    main()
