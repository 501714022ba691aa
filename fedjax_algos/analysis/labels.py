"""Labels of methods: finds the algorithm that a label names, and its name in tables and figures."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import printable
from fedjax_algos.core.options import check_choice

_MAX_CHARACTERS = 80  # of a label in a table or figure
SEPARATOR = ": "  # between a results folder and a method, in labels of several folders

# Algorithms of the package as the papers spell them. The position sets the style in figures: each
# column has a colour, and algorithms in one column differ in marker and line. Algorithms that are
# often compared are in different columns. The style of all others follows from their label.
_LINES = (
    "FedAvg      FedProx   SCAFFOLD FedDyn     FedGBO   GHBM       FedAdam FedCM",
    "Centralised MimeMom   FedMAX   MFL        FedLGA   MimeLite   FedNova MimeXlite",
    "MimeLiteMom FedAvgM   FedAT    FedCompass FedAsync FedBuff    Mime    FedYogi",
    "-           LocalGHBM FedHBM   FedAdagrad FedADC   FedRMSProp AdaBest q-FedAvg",
    "-           APFL      Ditto    pFedMe     FedRep   FedBN      IFCA    Per-FedAvg",
)
STYLE_TABLE = [name for line in _LINES for name in line.split()]
STYLED = {name.replace("-", "").lower(): name for name in STYLE_TABLE if name != "-"}
_OTHERS = (
    "FedSAM MoFedSAM FedGAMMA FedSpeed FedLESAM FedSMOO DiLoCo FedAdamW FedLADA FedMuon MOON "
    "FedNTD FedLC FedDecorr FedExP FedACG FedDisco AsyncSGD CA2FL FADAS ACE FedPer LG-FedAvg "
    "FedBABU FedALA"
)
DISPLAY_NAMES = STYLED | {name.replace("-", "").lower(): name for name in _OTHERS.split()}


def algorithm_of(label: str) -> str | None:
    """Finds the algorithm in a label's first word, such as `fedavg` in `iid: FedAvg-2, tuned`."""
    words = re.findall(r"\w+(?:-\w+)*", label.rpartition(SEPARATOR)[2].lower())
    parts = re.split("[-_]", words[0]) if words else [""]
    return next((name for name in ("".join(parts), parts[0]) if name in STYLED), None)


def file_name(label: str) -> str:
    """Replaces characters of a label that do not suit the name of a file."""
    return re.sub(r"[^\w.=+-]+", "-", label)


def label_text(label: object) -> str:
    """Puts a label on one line, and leaves out the middle of a long label."""
    return printable(label, _MAX_CHARACTERS)


def check_names(what: str, names: Sequence[str], known: Collection[str]) -> Sequence[str]:
    """Checks that chosen names are known and different, and returns them."""
    for name in names:
        check_choice(what, name, known)
    differ = 0 < len({*names}) == len(names)
    require(differ, f"{what}={list(names)!r} are not different names; give each once, at least one")
    return names


def display_names(labels: Iterable[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns names for tables and figures by label: `given`, or the paper's if it is unique."""
    names = {label: _display_name(label) for label in labels}
    uses = Counter(names.values())
    names = {label: name if uses[name] == 1 else label for label, name in names.items()}
    names |= {label: name for label, name in (given or {}).items() if label in names}
    for name in names.values():
        same = " and ".join(repr(label) for label in names if names[label] == name)
        text = f"the methods {same} would have the same label {name!r}; give them different ones"
        require([*names.values()].count(name) == 1, text)
    return names


def _display_name(label: str) -> str:
    folder, separator, method = label.rpartition(SEPARATOR)
    methods, space, options = method.partition(" ")
    name, plus, wrappers = methods.partition("+")
    last = wrappers.rpartition("+")[2]  # its options need no name
    space, options = (space, options) if options != last else ("", "")
    options = options.removeprefix(f"{last}:" * bool(last))
    return f"{folder}{separator}{DISPLAY_NAMES.get(name, name)}{plus}{wrappers}{space}{options}"
