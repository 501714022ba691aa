"""Reader of Fed-ISIC2019: skin lesions of six medical centres."""

from collections import Counter
from pathlib import Path

from fedjax_algos.core.files import PathLike, reading, require
from fedjax_algos.core.options import Count
from fedjax_algos.data.federated_data import ClientDataset
from fedjax_algos.data.images import square
from fedjax_algos.data.readers.images.image_files import (
    ImageFiles,
    class_numbers,
    image_source,
    read_table,
)
from fedjax_algos.data.registry import datasets

CENTRES = 6
CLASSES = 8  # MEL, NV, BCC, AK, BKL, DF, VASC, SCC


@datasets.register
def fed_isic2019(
    *,
    path: PathLike,
    split: str = "train_test_split",
    file: str = "ISIC_2019_Training_Input_preprocessed/{id}.jpg",
    image_size: Count = 200,
    shorter_side: Count = 224,
) -> ClientDataset:
    """Fed-ISIC2019: 23,247 photos of skin lesions in six centres and eight classes, as in FLamby.

    Clients 0 to 5 are FLamby's centres: BCN, HAM_vidir_molemax, HAM_vidir_modern, HAM_rosendahl,
    MSK and HAM_vienna_dias, with 9930, 3163, 2691, 1807, 655 and 351 training images, and 2483,
    791, 672, 452, 164 and 88 test images. The test set has the same clients; all of them together
    are FLamby's pooled test set. "x" is uint8[n, image_size, image_size, 3], the middle of the
    image, and "y" the column `target`.

    Args:
      path: the folder that FLamby's scripts `download_isic.py` and `resize_images.py` have filled,
        with FLamby's file `train_test_split`.
      split: that file, in the folder.
      file: the path of an image in the folder, as in `image_folder`.
      image_size: pixels of both sides of the result, at least 1.
      shorter_side: pixels of the shorter side of a whole image, at least `image_size`. FLamby's
        images have 224 and are not scaled again.

    Source: Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated
    Learning in Realistic Healthcare Settings", NeurIPS 2022, https://arxiv.org/abs/2210.04620;
    https://github.com/owkin/FLamby, flamby/datasets/fed_isic2019. In training, FLamby scales,
    rotates, flips, shears and brightens images at random, cuts out a random square and erases parts
    of it; here every image is its middle, as in FLamby's test set. FLamby subtracts the mean of
    ImageNet and divides by its standard deviation; here pixels stay 0 to 255. Its scripts round the
    side of a few images down to 223 pixels, which are scaled to `shorter_side` here.
    """
    image_format = square(image_size, shorter_side)
    table = read_table(Path(path, split), ("image", "target", "center", "fold", "fold2"))
    class_numbers(table, "center", CENTRES)
    folds = (table.columns[name] for name in ("fold", "center", "fold2"))
    with reading(table.name, "the split of Fed-ISIC2019", "fetch the file again"):
        for row, (fold, centre, both) in enumerate(zip(*folds, strict=True)):
            named = f"row {row} has fold={fold!r} and fold2={both!r} in center {centre}"
            require(fold in ("train", "test") and both == f"{fold}_{centre}", named)
        image, times = Counter(table.columns["image"]).most_common(1)[0]
        require(times == 1, f"it has the image '{image[:80]}' twice")
    files = ImageFiles(path, file, table.columns["image"])
    sources = []
    for fold in ("train", "test"):
        part = table.where(fold=fold)
        labels = class_numbers(part, "target", CLASSES)
        source, _ = image_source(part, files, labels, image_format, image="image", client="center")
        sources.append(source)
    return ClientDataset(sources[0], sources[1], CLASSES)
