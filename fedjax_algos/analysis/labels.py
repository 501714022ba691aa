"""Labels of methods: which algorithm one names, and what tables and figures call it."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import printable
from fedjax_algos.core.options import check_choice

_MAX_CHARACTERS = 80  # of a label that is shown
SEPARATOR = ": "  # of a results folder and a method, in the labels of several folders

# Algorithms of the package as the papers spell them, in the order of their styles in figures: a
# column for each colour. Those that are often compared with each other are in different columns;
# those in one column differ in the marker and the line. An algorithm that is not here keeps the
# name of its label, and its style follows from it.
_LINES = (
    "FedAvg      FedProx   SCAFFOLD FedDyn     FedGBO   GHBM       FedAdam FedCM",
    "Centralised MimeMom   FedMAX   MFL        FedLGA   MimeLite   FedNova MimeXlite",
    "MimeLiteMom FedAvgM   FedAT    FedCompass FedAsync FedBuff    Mime    FedYogi",
    "-           LocalGHBM FedHBM   FedAdagrad FedADC   FedRMSProp AdaBest q-FedAvg",
    "-           APFL      Ditto    pFedMe     FedRep   FedBN      IFCA    Per-FedAvg",
)
STYLE_TABLE = [name for line in _LINES for name in line.split()]
DISPLAY_NAMES = {name.replace("-", "").lower(): name for name in STYLE_TABLE if name != "-"}


def algorithm_of(label: str) -> str | None:
    """The algorithm that a label's first word names, as `fedavg` in `iid: FedAvg-2, tuned`."""
    words = re.findall(r"\w+(?:-\w+)*", label.rpartition(SEPARATOR)[2].lower())
    parts = re.split("[-_]", words[0]) if words else [""]
    return next((name for name in ("".join(parts), parts[0]) if name in DISPLAY_NAMES), None)


def file_name(label: str) -> str:
    """A label as a part of a file's name."""
    return re.sub(r"[^\w.=+-]+", "-", label)


def label_text(label: object) -> str:
    """A label on one line, in which the middle of a long one is left out."""
    return printable(label, _MAX_CHARACTERS)


def check_names(what: str, names: Sequence[str], known: Collection[str]) -> Sequence[str]:
    """Names that were chosen, after a check that they are known and different."""
    require(names, f"{what} is empty; give at least one")
    for index, name in enumerate(names):
        check_choice(what, name, known)
        require(name not in names[:index], f"{what} has {name!r} twice; give it once")
    return names


def display_names(labels: Iterable[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What tables and figures call methods, by label: as the papers do, if all names differ."""
    given, labels = given or {}, list(labels)
    names = {label: _display_name(label) for label in labels}
    uses = Counter(names.values())
    names = {own: given.get(own, name if uses[name] == 1 else own) for own, name in names.items()}
    for name in names.values():
        others = [label for label in labels if names[label] == name]
        what = f"the methods {' and '.join(map(repr, others))} would have the same label"
        require(len(others) < 2, f"{what} {name!r}; give them different ones")
    return names


def _display_name(label: str) -> str:
    folder, separator, method = label.rpartition(SEPARATOR)
    methods, space, options = method.partition(" ")
    name, plus, wrappers = methods.partition("+")
    last = wrappers.rpartition("+")[2]  # whose options need no name
    space, options = (space, options) if options != last else ("", "")
    options = options.removeprefix(f"{last}:" * bool(last))
    return f"{folder}{separator}{DISPLAY_NAMES.get(name, name)}{plus}{wrappers}{space}{options}"
