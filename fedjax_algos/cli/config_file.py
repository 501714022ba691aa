"""Reads settings and methods from a TOML file, written by hand or `tune`, or a `config.json`."""

import reprlib
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_algos.analysis.statistics import check_target_metric
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import MAX_TOML_BYTES, parse_json, parse_toml, read_file
from fedjax_algos.base.reprs import printable
from fedjax_algos.core.options import options, unknown
from fedjax_algos.core.specs import parse_seeds, parse_value
from fedjax_algos.runs.studies.settings import Settings

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_MAX_BITS = 1024  # of a whole number; Python refuses to show 4,300 digits


class ConfigFile(NamedTuple):
    """The content of a file, with typed settings."""

    path: str = ""  # "" without a file
    settings: Mapping[str, Any] = _NOTHING
    methods: tuple[str, ...] = ()
    compilation_cache: str | None = None
    tuning: Mapping[str, Any] | None = None  # the record of `tune`'s search


def read_config(path: str) -> ConfigFile:
    """Reads a TOML file or, if its name ends in .json, the `config.json` of `compare` and `run`.

    The keys of TOML are fields of `Settings`, `methods`, `compilation_cache` and `tuning`.
    """
    is_json = path.lower().endswith(".json")
    kind = "JSON" if is_json else "TOML"
    try:
        read = read_file(path, None if is_json else MAX_TOML_BYTES)
        content = parse_json(read) if is_json else parse_toml(read)
    except OSError as error:
        raise ValueError(
            f"config={path!r} cannot be read ({error.strerror}); name a TOML file, or the "
            "config.json of a results folder"
        ) from None
    except ValueError as error:  # not TOML or JSON, or not text
        raise ValueError(f"config={path!r} is not a {kind} file: {error}") from None
    return _of_results(path, content) if is_json else _of_toml(path, content)


def _of_toml(path: str, content: dict[str, Any]) -> ConfigFile:
    methods, cache = content.pop("methods", None), content.pop("compilation_cache", None)
    if methods is not None:
        listed = isinstance(methods, list) and methods and all(isinstance(m, str) for m in methods)
        fix = 'is not a list of methods; give one such as ["fedavg", "fedprox:mu=0.1"]'
        _require(listed, path, "methods", methods, fix)
    is_text = isinstance(cache, str | None)
    _require(is_text, path, "compilation_cache", cache, "is not a folder; give a text")
    tuning = _check_tuning(path, content.pop("tuning", None))
    settings = _settings(path, content, "methods", "compilation_cache", "tuning")
    return ConfigFile(path, settings, tuple(methods or ()), cache, tuning)


def _of_results(path: str, content: Any) -> ConfigFile:
    """Reads the settings and methods of an earlier run."""
    from fedjax_algos.runs.studies.method import configured_spec

    fix = "name the config.json of a results folder of compare or run"
    wanted: dict[str, Any] = {"settings": dict, "methods": dict, "command": list}
    if not isinstance(content, dict) or not all(
        isinstance(content.get(name), kind) for name, kind in wanted.items()
    ):
        raise ValueError(f"config={path!r} has no settings and methods of a run; {fix}")
    if "grid" in content:
        command = shlex.join(["fedjax-algos", *map(str, content["command"])])
        what = f"config={path!r} is from a search, which compare cannot repeat"
        raise ValueError(f"{what}; its command was {printable(command)}")
    given = {name: value for name, value in content["settings"].items() if value is not None}
    require(content["methods"], f"config={path!r} has no methods; {fix}")
    for method in content["methods"].values():
        named = isinstance(method, dict) and isinstance(method.get("algorithm"), str)
        if not named or any(isinstance(value, list | dict) for value in method.values()):
            raise ValueError(f"{path}: {reprlib.repr(method)} is not a method; {fix}")
    methods = tuple(configured_spec(method) for method in content["methods"].values())
    tuning = _check_tuning(path, content.get("tuning"))
    return ConfigFile(path, _settings(path, given), methods, tuning=tuning)


def stored_settings(
    folder: Path, configuration: Mapping[str, Any], names: Collection[str] = options(Settings)
) -> Settings:
    """Returns the settings of a results folder with these names; skips names of other versions."""
    path, content = repr(str(folder / "config.json")), configuration.get("settings", {})
    given = {n: value for n, value in content.items() if n in names and value is not None}
    settings = Settings(**_settings(path, given))
    try:
        check_target_metric(settings.target_metric)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return settings


def _require(fact: Any, path: str, name: str, value: Any, problem: str) -> None:
    if not fact:  # because showing a huge number may fail
        raise ValueError(f"{path}: {name}={reprlib.repr(value)} {problem}")


def _check_tuning(path: str, tuning: Any) -> Mapping[str, Any] | None:
    """Checks the record that `tune` wrote of its search."""
    if tuning is not None:
        seeds = tuning.get("seeds") if isinstance(tuning, dict) else None
        right = isinstance(seeds, list) and all(isinstance(seed, int) for seed in seeds)
        _require(right, path, "tuning", tuning, "is not what tune wrote; leave it out")
    return tuning


def _settings(path: str, content: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """Returns the typed settings of a file."""
    known = options(Settings)
    settings = {}
    for key, value in content.items():
        require(key in known, f"{path}: {unknown('setting', key, [*known, *others])}")
        is_seeds = key == "seeds" and isinstance(value, list)
        one = is_seeds or not isinstance(value, list | dict)
        _require(one, path, key, value, "is not one value; give a number or a text")
        numbers = [each for each in (value if is_seeds else [value]) if isinstance(each, int)]
        if any(number.bit_length() > _MAX_BITS for number in numbers):
            raise ValueError(f"{path}: {key} has too many digits; give a smaller number")
        settings[key] = parse_setting(key, value, path)
    return settings


def parse_setting(name: str, given: Any, owner: str = "") -> Any:
    """Parses and checks a setting's value: a text, or a value of a file."""
    if name == "seeds":
        return parse_seeds(given, owner)
    value = parse_value(options(Settings)[name], given, owner)
    is_count = name == "cohort" and "." not in str(given)  # 1.0 is not known to be one client
    return int(value) if is_count and value.is_integer() else value
