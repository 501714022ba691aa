"""Readers of images that tables divide over clients: one's own, GLDv2 and iNaturalist."""

from pathlib import Path

from fedjax_algos.core.files import PathLike
from fedjax_algos.core.options import Count
from fedjax_algos.data.federated_data import ClientDataset
from fedjax_algos.data.images import square
from fedjax_algos.data.readers.images.image_files import (
    ImageFiles,
    image_source,
    in_order,
    numbered,
    read_table,
)
from fedjax_algos.data.registry import datasets

COLUMNS = "user_id", "image_id", "class"  # of the tables of Hsu et al.


@datasets.register
def image_folder(
    *,
    path: PathLike,
    train: str = "train.csv",
    test: str = "test.csv",
    file: str = "{id}.jpg",
    client_column: str = "user_id",
    image_column: str = "image_id",
    class_column: str = "class",
    image_size: Count = 224,
    shorter_side: Count = 256,
    min_examples: Count = 1,
) -> ClientDataset:
    """Images in a folder, which two CSV files divide over clients; read client by client.

    A row of the training file has a client, the id of an image and a class. A row of the test file
    has the same, or no client: its images are then read in parts of 256, as if these were clients.
    Other columns are not read. Clients are numbered in ascending order of their names, and classes
    in that of all class names of both files; names that all are whole numbers are ordered as
    numbers, so classes 0 to K - 1 keep their numbers. An image is scaled to `shorter_side`, and its
    middle is cut out: "x" is uint8[n, image_size, image_size, 3]. A missing image is found when its
    client is read.

    Args:
      path: the folder.
      train, test: the CSV files, in the folder.
      file: the path of an image in the folder, for JPEG or PNG files. `{id}` stands for the image's
        id, `{id[0]}` for the first character of the id, and `*` for a folder of any name, as in
        `*/{id}.jpg`.
      client_column, image_column, class_column: the names of the columns.
      image_size: pixels of both sides of the result, at least 1.
      shorter_side: pixels of the shorter side of a whole image, at least `image_size`.
      min_examples: training clients with fewer images are left out and counted in `notes`.
    """
    columns = client_column, image_column, class_column
    return _by_client(path, train, test, file, columns, image_size, shorter_side, min_examples)


@datasets.register
def gldv2(
    *,
    path: PathLike,
    train: str = "federated_train.csv",
    test: str = "test.csv",
    file: str = "{id[0]}/{id[1]}/{id[2]}/{id}.jpg",
    image_size: Count = 224,
    shorter_side: Count = 256,
    min_examples: Count = 1,
) -> ClientDataset:
    """Landmarks-User-160k: photos of the Google Landmarks Dataset v2, by photographer.

    1,262 photographers have 164,172 photos of 2,028 landmarks. The folder has the images as in the
    data set's archives, and the CSV files of the split. Read as by `image_folder`.

    Args:
      path: the folder.
      train, test: the CSV files, in the folder: `mini_gld_train_split.csv` and `mini_gld_test.csv`
        are TensorFlow Federated's part with 233 photographers, 23,080 photos and 203 landmarks.
      file: the path of an image, as in `image_folder`; `{id}.jpg` if all are in one folder.
      image_size: pixels of both sides of the result, at least 1.
      shorter_side: pixels of the shorter side of a whole image, at least `image_size`.
      min_examples: photographers with fewer photos are left out and counted in `notes`.

    Source: Hsu, Qi, Brown, "Federated Visual Classification with Real-World Data Distribution",
    ECCV 2020, https://arxiv.org/abs/2003.08082; the files of the split are linked from
    https://github.com/google-research/google-research/tree/master/federated_vision_datasets, whose
    page gives 1,062 photographers where TensorFlow Federated has 1,262. TensorFlow Federated leaves
    out images that are missing; here they are an error.
    """
    return _by_client(path, train, test, file, COLUMNS, image_size, shorter_side, min_examples)


@datasets.register
def inaturalist(
    *,
    path: PathLike,
    train: str = "federated_train_user_120k.csv",
    test: str = "test.csv",
    file: str = "train_val_images/*/*/{id}.jpg",
    image_size: Count = 224,
    shorter_side: Count = 256,
    min_examples: Count = 1,
) -> ClientDataset:
    """iNaturalist-User-120k: photos of plants and animals of iNaturalist 2017, by photographer.

    9,275 photographers have 120,300 photos of 1,203 species; the test set has 35,641. The folder
    has the extracted `train_val_images` and the CSV files of the split. As these do not say in
    which folder an image is, the folders are listed once, when the first image is read. Read as by
    `image_folder`; the classes are those of the column `class`, and not the competition's in the
    column `label`.

    Args:
      path: the folder.
      train, test: the CSV files, in the folder; those of iNaturalist-Geo divide the same photos by
        place.
      file: the path of an image, as in `image_folder`.
      image_size: pixels of both sides of the result, at least 1.
      shorter_side: pixels of the shorter side of a whole image, at least `image_size`.
      min_examples: photographers with fewer photos are left out and counted in `notes`.

    Source: Hsu, Qi, Brown, "Federated Visual Classification with Real-World Data Distribution",
    ECCV 2020, https://arxiv.org/abs/2003.08082; the files of the split are linked from
    https://github.com/google-research/google-research/tree/master/federated_vision_datasets, and
    the images from https://github.com/visipedia/inat_comp/tree/master/2017.
    """
    return _by_client(path, train, test, file, COLUMNS, image_size, shorter_side, min_examples)


def _by_client(
    path: PathLike,
    train: str,
    test: str,
    file: str,
    columns: tuple[str, str, str],
    image_size: int,
    shorter_side: int,
    min_examples: int,
) -> ClientDataset:
    """The data set of `image_folder`, whose columns of clients, images and classes are named."""
    image_format = square(image_size, shorter_side)
    client_column, image_column, class_column = columns
    always = image_column, class_column
    tables = (
        read_table(Path(path, train), (client_column, *always)),
        read_table(Path(path, test), always, (client_column,)),
    )
    classes = in_order(name for table in tables for name in table.columns[class_column])
    files = ImageFiles(path, file, [i for table in tables for i in table.columns[image_column]])
    sources, notes = [], list[str]()
    for table, fewest in zip(tables, (min_examples, 1), strict=True):
        source, left_out = image_source(
            table,
            files,
            numbered(table.columns[class_column], classes),
            image_format,
            image=image_column,
            client=client_column if client_column in table.columns else None,
            min_examples=fewest,
        )
        sources.append(source)
        notes += left_out
    in_both = set.intersection(*(set(table.columns[image_column]) for table in tables))
    if in_both:
        notes.append(f"{len(in_both)} images are in the training and in the test file")
    return ClientDataset(sources[0], sources[1], len(classes), tuple(notes))
