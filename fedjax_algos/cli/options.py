"""Declares the options that training commands share, and makes `Settings` from them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from fedjax_algos.analysis.labels import SEPARATOR
from fedjax_algos.analysis.tables import FORMATS, RECORD_FORMATS
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import writing
from fedjax_algos.cli.config_file import ConfigFile
from fedjax_algos.core.options import Option, Row, one_of, options, unknown
from fedjax_algos.core.specs import parse_seeds, parse_value
from fedjax_algos.runs.studies.settings import Settings, parse_setting

GROUPS = {  # of the options in `--help`
    "Most used": {
        "dataset": "name of a data set, see `list datasets`",
        "model": "name of a model, see `list models`",
        "partition": "how examples are divided over clients, see `list partitions`",
        "clients": "number of clients",
        "cohort": "clients in a round or, below 1, their share [10; the slots of poisson]",
        "rounds": "communication rounds",
        "client_learning_rate": "rate of the local steps [the method's, else 0.1]",
        "seeds": "a number of seeds (5: 0 to 4), a range (10-14) or a list (3,7); `1000,` is one",
    },
    "Model": {
        "loss": "loss of training and evaluation, see `list losses` [the model's]",
        "metrics": "more metrics, such as top_k_accuracy:k=3, see `list metrics` [none]",
        "compute_dtype": "dtype of the computation: params (float32) or bfloat16",
        "rematerialise": "whether gradients compute the model twice, to need less memory",
    },
    "Clients": {
        "shift": "how the inputs of clients differ, see `list shifts` [not at all]",
        "sampler": "how the clients of a round are chosen, see `list samplers`",
        "failures": "which clients train and then do not answer, see `list failures` [none]",
        "work": "how much of its local work a client does, see `list local_works`",
    },
    "Local training": {
        "local_steps": "steps of a client in a round [10 unless --local-epochs is given]",
        "local_epochs": "passes of a client over its data in a round, instead of steps; may be 0.5",
        "batch_size": "examples of a local step",
        "batches": f"how batches are drawn: {one_of(options(Settings)['batches'].choices)}",
        "gradient_accumulation": "pieces of a batch, computed one after another",
        "client_optimizer": "optimiser of local steps, see `list client_optimizers` [the method's]",
        "rate_schedule": "how the client learning rate changes, see `list rate_schedules`",
        "rate_by": "what the schedule counts: round, dispatch (the client's own), or step (local)",
        "weight_decay": "factor of the params that is added to a client's gradient, after clipping",
        "clip_norm": "largest norm of a client's corrected gradient; 0: no limit",
    },
    "Server": {
        "server_learning_rate": "rate of the server's step [the method's]",
        "wrap": "wrappers of all methods, such as identity+mean, see `list wrappers` [none]",
        "non_finite": "what happens to updates that are not finite: exclude, error or keep",
    },
    "Evaluation": {
        "eval_every": "rounds between evaluations",
        "target": "quality whose costs are shown, by `compare` after `tune` [the reference's best]",
        "target_metric": "metric that compares methods, and `tune`'s score",
        "budget": "COLUMN=NUMBER, such as upload_bytes=5e5: where each run ends [none]",
        "reference": "label of the method or setting to compare the others with [the first]",
        "test_examples": "draw this many for evaluation if there are more [all]",
        "evaluate_clients": "examples to evaluate clients' own models on: none, train or held_out",
        "evaluate_clients_at": "when each client's own model is evaluated: end or evaluations",
        "held_out": "share of each client's examples to hold out, for --evaluate-clients held_out",
        "personal_steps": "local steps of each client before its model is evaluated",
    },
    "Virtual clock": {
        "seconds": "simulated seconds: run on the virtual clock, each method with its own planner",
        "system": "speeds and unavailability of clients, see `list system_models`",
        "evaluations": "evaluations on the virtual clock",
    },
    "Devices": {
        "layout": "auto, vmapped, sequential, or a number of clients computed at once",
        "devices": "devices for a cohort, a wave or a sweep's runs [1; in a sweep all]",
        "devices_per_client": "devices that compute one client together, each with a part of it",
        "client_state": "where clients' own state is kept between rounds: device, host or disk",
        "examples": "replicated on all devices, or sharded by client",
        "compilation_cache": "folder that keeps compiled programs, or none [in the user's cache]",
        "coordinator": "HOST:PORT of process 0, unless srun or mpirun starts the processes",
        "processes": "processes that compute together [set by srun or mpirun, else 1]",
        "process": "number of this process, from 0 [set by srun or mpirun]",
    },
    "Results": {
        "out": "results folder",
        "resume": "go on where the run in --out stopped; or begin a new one",
        "share": "part I of N of the runs, for N commands that write into one --out [all]",
        "track": "tensorboard, wandb or FILE.py:NAME, see `list trackers`; may be repeated",
        "checkpoint_every": "seconds between two checkpoints of a run [300]",
        "keep_checkpoints": "number of checkpoints to keep of a run [2]",
    },
}
HELP = {name: text for texts in GROUPS.values() for name, text in texts.items()}
# click's keywords for options that are not plain texts
_KEYWORDS: dict[str, dict[str, Any]] = {
    "columns": {"metavar": "A,B"},
    "compilation_cache": {"metavar": "FOLDER"},
    "config": {"metavar": "FILE"},
    "facet": {"type": click.Choice(["results", "method", "seed"])},
    "format": {"type": click.Choice([*FORMATS, *RECORD_FORMATS])},
    "grid": {"metavar": "NAME=VALUE,...", "multiple": True},
    "label": {"metavar": "OLD=NEW", "multiple": True},
    "out": {"metavar": "PATH"},
    "resume": {"is_flag": True},
    "share": {"metavar": "I/N"},
    "track": {"metavar": "TRACKER", "multiple": True},
}
# default seeds of commands; `tune` and `compare` use different ones
SEEDS = {"compare": "10", "run": "1", "sweep": "3", "tune": "1000-1002"}
_LOCAL_WORK = {"local_steps", "local_epochs"}
_IN_ROUNDS = {"rounds", "eval_every", "cohort", "sampler", "work"}
_NO_FILE = ConfigFile()


class Command(click.Command):
    """A command that groups its options, and refuses one that is given twice.

    An option that may be repeated is not refused.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's hook; raises UsageError for a repeated option."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        for parameter in self.get_params(ctx):
            repeatable = isinstance(parameter, click.Argument) or parameter.multiple
            if not repeatable and order.count(parameter) > 1:
                raise click.UsageError(f"{parameter.opts[0]} is given twice; give it once")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Click's hook; writes the options of the command itself before the groups."""
        parameters = (each for each in self.get_params(ctx) if isinstance(each, click.Option))
        records = {each.name: each.get_help_record(ctx) for each in parameters}
        groups = GROUPS if "dataset" in records else {}  # the commands that train, and `costs`
        grouped = {name for names in groups.values() for name in names}
        others = {name: "" for name in records if name not in grouped}
        for title, names in {"Options": others, **groups}.items():
            if lines := [record for name in names if (record := records.get(name))]:
                with formatter.section(title):
                    formatter.write_dl(lines)


def add_options(texts: Mapping[str, str], keywords: Mapping[str, dict] = _KEYWORDS) -> Callable:
    """Returns a decorator that adds an option for each name, with its help text."""

    def decorate(command: Callable) -> Callable:
        for name, text in reversed([*texts.items()]):
            of_option = keywords.get(name, {"metavar": "VALUE"})
            command = click.option(flag(name), name, help=text, **of_option)(command)
        return command

    return decorate


def settings_texts(names: Iterable[str], **defaults: Any) -> dict[str, str]:
    """Returns the help of settings, with their defaults; `defaults` replaces some."""
    texts = {}
    for name in names:
        default = defaults.get(name, options(Settings)[name].default)
        text = f"{default:g}" if isinstance(default, float) else default
        texts[name] = HELP[name] + ("" if default is None else f" [{text}]")
    return texts


def shared_options(seeds: str, leave_out: Collection[str] = ()) -> Callable:
    """Returns a decorator that adds the options of training commands; see `settings_of`."""
    texts = {name: text for name, text in HELP.items() if name not in leave_out}
    settings = settings_texts([name for name in options(Settings) if name in texts], seeds=seeds)
    return add_options(settings | {n: text for n, text in texts.items() if n not in settings})


def values_of(known: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Parses the values of those `known` options that a command was given; skips objects."""
    return {
        name: parse_value(option, text)
        for name, option in known.items()
        if option.kind is not object and (text := values.get(name)) is not None
    }


def flag(name: str) -> str:
    """Returns an option's name on the command line, such as `--local-steps`."""
    return "--" + name.replace("_", "-")


def range_of(option: Option) -> str:
    """Describes the choices or the range of an option, and its default."""
    values = option.range or getattr(option.kind, "__name__", option.kind)
    text = " or ".join(option.choices) if option.choices else str(values)
    return f"{text} [{'needed' if option.required else option.default}]"


def described(factory: Callable) -> dict[str, Any]:
    """Returns the description of a factory and its options, as `list --json` prints them."""
    known = {
        option.name: {
            "type": option.kind.__name__,
            "values": list(option.choices) or (str(option.range) if option.range else None),
            "needed": option.required,
            "default": None if option.required else option.default,
        }
        for option in text_options(factory)
    }
    return {"description": (factory.__doc__ or "").split("\n")[0], "options": known}


def text_options(factory: Callable) -> list[Option]:
    """Returns the options of a factory that a text can give."""
    return [option for option in options(factory).values() if option.kind is not object]


def settings_of(
    values: dict[str, Any], seeds: str, config: ConfigFile = _NO_FILE, methods: Iterable[str] = ()
) -> Settings:
    """Makes the settings of a file and the command line; the command line takes precedence."""
    given = {name: values[name] for name in options(Settings) if values.get(name) is not None}
    from_file = dict(config.settings)
    if given.keys() & _LOCAL_WORK:  # steps replace a file's epochs, and epochs its steps
        from_file = {name: from_file[name] for name in from_file.keys() - _LOCAL_WORK}
    typed = from_file | {name: parse_setting(name, text) for name, text in given.items()}
    settings = Settings(**{"seeds": parse_seeds(seeds)} | typed)
    fixes = _without_effect(settings)
    if "system" in given and not (settings.in_system or _wrapper_reads_system(methods)):
        fixes["system"] = (
            "is for the virtual clock, and in rounds for --failures late, --sampler in_session and "
            "the wrapper oort; give --seconds or one of these too"
        )
    if wrong := next((name for name in given if name in fixes), None):
        raise ValueError(f"{flag(wrong)} {given[wrong]} {fixes[wrong]}, or leave it out")
    return settings


def _wrapper_reads_system(methods: Iterable[str]) -> bool:
    from fedjax_algos.participation.in_rounds import reads_system
    from fedjax_algos.runs.studies.method import parse_spec
    from fedjax_algos.wrappers import wrappers

    specs = (spec for method in methods for spec in parse_spec(method)[2])
    return any(reads_system(wrappers, spec) for spec in specs)


def _without_effect(settings: Settings) -> dict[str, str]:
    """Returns the options that have no effect with the others, each with the fix."""
    if settings.seconds is None:
        fixes = {"evaluations": "is for the virtual clock; give --seconds too"}
    else:
        fix = "is for rounds and has no effect on the virtual clock; leave --seconds out"
        fixes = dict.fromkeys(_IN_ROUNDS, fix)
    if settings.evaluate_clients != "held_out":
        fixes["held_out"] = "is for --evaluate-clients held_out; give that too"
    if settings.evaluate_clients == "none":
        fixes["personal_steps"] = "is for --evaluate-clients; give train or held_out there"
    return fixes


def check_path(name: str, path: Any) -> None:
    """Checks the path of a file or a folder; None passes."""
    is_path = isinstance(path, str) and path and not path.startswith("--") and "\0" not in path
    fix = "give a text; begin it with ./ if the name begins with --"
    require(is_path or path is None, f"{name}={path!r} is not a path; {fix}")


def new_file(out: str | Path) -> Path:
    """Returns the file that --out (a text) names, or a default path; it must not exist."""
    if isinstance(out, str):
        check_path("out", out)
    path = Path(out)
    with writing(path):
        if path.exists() or path.is_symlink() or str(out).endswith("/"):  # also a broken link
            raise ValueError(f"out={str(out)!r} exists or is a folder; name a new file")
    return path


def known_as(name: str, labels: Collection[str]) -> list[str]:
    """Returns the labels that a name means: itself, or the method of that name in each folder."""
    return [name] if name in labels else [old for old in labels if old.endswith(SEPARATOR + name)]


def labels_of(texts: tuple[str, ...], rows: list[Row]) -> dict[str, str]:
    """Parses texts OLD=NEW, which replace labels; a label may contain equals signs."""
    columns = ("method", "results")
    known = dict.fromkeys(str(row[name]) for name in columns for row in rows if name in row)
    labels: dict[str, str] = {}
    for text in texts:
        parts = text.split("=")
        splits = [("=".join(parts[:i]), "=".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
        found = [(old, new) for old, new in splits if known_as(old, known)]
        require("=" in text, f"label={text!r} has no new text; give OLD=NEW")
        if not found:
            error = unknown("label", text.rpartition("=")[0], known)
            raise ValueError(f"label={text!r} is not OLD=NEW with a label of its own: {error}")
        old, new = found[0]
        for label in known_as(old, known):
            del known[label]
            labels[label] = new if label == old else label.removesuffix(old) + new
    return labels
