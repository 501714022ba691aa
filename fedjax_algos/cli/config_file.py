"""A file of settings and methods for `fedjax-algos compare --config FILE.toml`."""

import reprlib
import tomllib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_algos.core.files import open_regular, read_bounded
from fedjax_algos.core.options import options, unknown
from fedjax_algos.runs.settings import Settings

_MAX_BYTES = 2**18
_MAX_DOTS = 256  # of a line; tomllib's time grows with the square of the dots of a key


class ConfigFile(NamedTuple):
    """The content of a file, as texts of the command line."""

    path: str = ""  # "" without a file
    settings: Mapping[str, str] = MappingProxyType({})
    methods: tuple[str, ...] = ()
    compilation_cache: str | None = None


def read_config(path: str) -> ConfigFile:
    """Reads a TOML file whose keys are fields of `Settings`, `methods` and `compilation_cache`.

    `methods` is a list, `seeds` a number, a list, or a range as text; the other settings are one
    value each. Their ranges are checked later, together with those of the command line.

    Args:
      path: of the file.

    Raises:
      ValueError: for a file that cannot be read, is no TOML, or has a wrong key or kind of value.
    """
    try:
        with open_regular(path) as file:
            text = read_bounded(file, _MAX_BYTES).decode()
        for number, line in enumerate(text.split("\n"), start=1):
            if line.count(".") > _MAX_DOTS:
                raise ValueError(f"line {number} has more than {_MAX_DOTS} dots; divide it")
        content = tomllib.loads(text)
    except OSError as error:
        raise ValueError(
            f"config={path!r} cannot be read ({error.strerror}); name a TOML file"
        ) from None
    except ValueError as error:  # of TOML, or of text at all
        raise ValueError(f"config={path!r} is no TOML file: {error}") from None
    except RecursionError:
        raise ValueError(f"config={path!r} is no TOML file: it is nested too deeply") from None
    methods = content.pop("methods", None)
    listed = isinstance(methods, list) and methods and all(isinstance(m, str) for m in methods)
    if methods is not None and not listed:
        raise ValueError(
            f"{path}: methods={reprlib.repr(methods)} is no list of methods; give one such as "
            '["fedavg", "fedprox:mu=0.1"]'
        )
    cache = content.pop("compilation_cache", None)
    if not isinstance(cache, str | None):
        raise ValueError(
            f"{path}: compilation_cache={reprlib.repr(cache)} is no folder; give a text"
        )
    known = options(Settings)
    for key in content:
        if key not in known:
            names = [*known, "methods", "compilation_cache"]
            raise ValueError(f"{path}: {unknown('setting', key, names)}")
    texts = {key: _text(path, key, value) for key, value in content.items()}
    return ConfigFile(path, texts, tuple(methods or ()), cache)


def _text(path: str, key: str, value: Any) -> str:
    is_list = key == "seeds" and isinstance(value, list)
    if isinstance(value, list | dict) and not is_list:
        raise ValueError(
            f"{path}: {key}={reprlib.repr(value)} is not one value; give a number or a text"
        )
    try:
        return ",".join(map(str, value)) + "," if is_list else str(value)
    except ValueError:  # Python's bound for the conversion of whole numbers
        raise ValueError(f"{path}: {key} has too many digits; give a smaller number") from None
