"""Reads settings and methods from a TOML file (yours, or `tune`'s) or from a `config.json`."""

import reprlib
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_algos.analysis.statistics import check_target_metric
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import MAX_TOML_BYTES, parse_json, parse_toml, read_file, reading
from fedjax_algos.core.options import options, unknown
from fedjax_algos.runs.studies.settings import Settings, parse_setting

SETUPS = {path.stem: path for path in (Path(__file__).parent / "setups").glob("*.toml")}
_KIND = "a file of settings"
_FIX = "give a TOML file, or the config.json of a results folder of compare or run"


class ConfigFile(NamedTuple):
    """The content of a file, with typed settings."""

    settings: Mapping[str, Any] = MappingProxyType({})
    methods: tuple[str, ...] = ()
    compilation_cache: str | None = None
    tuning: Mapping[str, Any] | None = None  # the record of `tune`'s search


def read_config(path: str) -> ConfigFile:
    """Reads a TOML file or, if its name ends in .json, the `config.json` of `compare` and `run`.

    The keys of TOML are `methods`, `compilation_cache`, `tuning` and the fields of `Settings`. The
    name of one of `SETUPS`, such as "standard_cifar100", stands for its file.
    """
    path = str(SETUPS.get(path, path))
    with reading(path, _KIND, _FIX):
        if path.lower().endswith(".json"):
            return _from_results(parse_json(read_file(path)))
        return _from_toml(parse_toml(read_file(path, MAX_TOML_BYTES)))


def _from_toml(content: dict[str, Any]) -> ConfigFile:
    methods, cache = content.pop("methods", None), content.pop("compilation_cache", None)
    tuning = _checked_tuning(content.pop("tuning", None))
    if methods is not None:
        listed = isinstance(methods, list) and methods and all(isinstance(m, str) for m in methods)
        fix = 'is not a list of methods; give one such as ["fedavg", "fedprox:mu=0.1"]'
        require(listed, f"methods={reprlib.repr(methods)} {fix}")
    settings = _settings(content, "methods", "compilation_cache", "tuning")
    return ConfigFile(settings, tuple(methods or ()), cache, tuning)


def _from_results(content: Any) -> ConfigFile:
    """Reads the settings and methods of an earlier run."""
    from fedjax_algos.runs.studies.method import configured_spec

    kinds = {"settings": dict, "methods": dict, "command": list}
    parts = content if isinstance(content, dict) else {}
    complete = all(isinstance(parts.get(name), kind) for name, kind in kinds.items())
    require(complete and parts["methods"], "it has no settings and methods of a run")
    command = shlex.join(["fedjax-algos", *map(str, content["command"])])
    text = f"it is from tune or sweep, which compare cannot repeat; its command was {command}"
    require("grid" not in content, text)
    for method in content["methods"].values():
        named = isinstance(method, dict) and isinstance(method.get("algorithm"), str)
        nested = named and any(isinstance(value, list | dict) for value in method.values())
        require(named and not nested, f"{reprlib.repr(method)} is not a method")
    methods = tuple(configured_spec(method) for method in content["methods"].values())
    given = {name: value for name, value in content["settings"].items() if value is not None}
    return ConfigFile(_settings(given), methods, tuning=_checked_tuning(content.get("tuning")))


def stored_settings(
    folder: Path, configuration: Mapping[str, Any], names: Collection[str] = options(Settings)
) -> Settings:
    """Returns the settings `names` of a results folder; skips names of other versions."""
    content = configuration.get("settings", {})
    values = {n: value for n, value in content.items() if n in names and value is not None}
    with reading(folder / "config.json", _KIND, _FIX):
        settings = Settings(**_settings(values))
        check_target_metric(settings.target_metric)
    return settings


def _checked_tuning(tuning: Any) -> Mapping[str, Any] | None:
    """Checks that the record of `tune`'s search has the seeds."""
    seeds = tuning.get("seeds") if isinstance(tuning, dict) else None
    valid = isinstance(seeds, list) and all(isinstance(seed, int) for seed in seeds)
    text = f"tuning={reprlib.repr(tuning)} is not what tune wrote; leave it out"
    require(tuning is None or valid, text)
    return tuning


def _settings(content: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """Returns the typed settings of a file."""
    known = options(Settings)
    for name in content:
        if name not in known:
            raise ValueError(unknown("setting", name, [*known, *others]))
    return {name: parse_setting(name, value) for name, value in content.items()}
