"""Declares the options that training commands share, and makes `Settings` from them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from fedjax_algos.analysis.labels import SEPARATOR
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import writing
from fedjax_algos.cli.config_file import ConfigFile, parse_setting
from fedjax_algos.core.options import Option, Row, one_of, options, unknown
from fedjax_algos.core.specs import parse_seeds, parse_value
from fedjax_algos.runs.studies.settings import Settings

HELP = {
    "dataset": "name of a data set, see `list datasets`",
    "model": "name of a model, see `list models`",
    "loss": "of training and evaluation, see `list losses` [the model's, else cross_entropy]",
    "metrics": "besides the model's, such as top_k_accuracy:k=3, see `list metrics` [none]",
    "compute_dtype": "of the model: its params' dtype (float32), or bfloat16 with float32 params",
    "rematerialise": "whether gradients compute most of the model twice, to need less memory",
    "partition": "how examples are divided over clients, see `list partitions`",
    "clients": "number of clients",
    "cohort": "clients in a round or, below 1, their fraction [10; the slots that poisson needs]",
    "sampler": "chooses the clients of a round, see `list samplers`",
    "failures": "which clients train and then do not answer, see `list failures` [none]",
    "work": "how much of its local work a client does, see `list local_works`",
    "rounds": "communication rounds",
    "local_steps": "steps of a client in a round [10 unless --local-epochs is given]",
    "local_epochs": "passes of a client over its data in a round, instead of steps; may be 0.5",
    "batch_size": "examples of a local step",
    "batches": f"how batches are drawn: {one_of(options(Settings)['batches'].choices)}",
    "gradient_accumulation": "pieces of a batch, whose gradients are computed one after another",
    "client_learning_rate": "rate of the local steps [the method's, else 0.1]",
    "client_optimizer": "optimiser of the local steps, after clipping and weight decay, such as "
    "sgd:momentum=0.9 or adam, see `list client_optimizers` [the method's, else sgd]",
    "wrap": "wrappers of all methods, such as identity+mean, see `list wrappers` [none]",
    "rate_schedule": "how the client learning rate changes, see `list rate_schedules`",
    "rate_by": "what the schedule counts: round, dispatch (the client's own), or step (local)",
    "weight_decay": "this times the params is added to a client's gradient, after clipping",
    "clip_norm": "largest norm of a client's gradient after the method's correction; 0: no limit",
    "server_learning_rate": "rate of the server's step [the method's]",
    "seeds": "a number of seeds (5: 0 to 4), a range (10-14) or a list (3,7); `1000,` is one seed",
    "eval_every": "rounds between evaluations",
    "target": "quality whose rounds and upload are measured [the reference's best]",
    "target_metric": "the quality that methods are compared on: accuracy, or a metric of --metrics "
    "or of the model that is higher for better models, such as dice_score",
    "budget": "COLUMN=NUMBER, such as upload_bytes=5e5: a run ends at the first evaluation where "
    "it has cost as much, and methods are compared within it [none]",
    "reference": "label of the method to compare the others with [the first]",
    "test_examples": "draw this many for evaluation if there are more [all]",
    "evaluate_clients": "at the end, evaluates each client's own model on its train examples or on "
    "its held_out ones: none, train or held_out",
    "evaluate_clients_at": "with --evaluate-clients: only at the end, or also at all evaluations, "
    "which adds columns such as client_accuracy_worst_decile: end or evaluations",
    "held_out": "share of each client's examples that is not trained on, with held_out",
    "personal_steps": "local steps of each client before its model is evaluated",
    "seconds": "simulated seconds: run on the virtual clock, each method with its own planner",
    "system": "speeds and unavailability on the virtual clock, and for --failures late, "
    "--sampler in_session and the wrapper oort; see `list system_models`",
    "evaluations": "evaluations on the virtual clock",
    "layout": "auto (sequential on a CPU, else as many as fit into memory), vmapped, sequential, "
    "or a number of clients computed at once",
    "devices": "number of devices that share a cohort, a wave, or the runs of a sweep [1, because "
    "more change the rounding; sweep, which does not depend on it: all; of a CPU one per core]",
    "devices_per_client": "devices that compute a client together, each with a part of its model",
    "client_state": "where the clients' own state is kept between rounds: device, host, or "
    "disk, in the results folder until the runs have ended",
    "examples": "replicated on all devices, or sharded by client",
    "compilation_cache": "folder that keeps compiled programs for later commands [none]",
    "out": "results folder",
    "track": "also gives each row to a tracker as it is measured: tensorboard, wandb, or your "
    "own (FILE.py:NAME), see `list trackers`; may be repeated",
    "checkpoint_every": "seconds between two checkpoints of a run [300]",
    "keep_checkpoints": "number of checkpoints to keep of a run [2]",
    "share": "part I of N of the runs, such as 1/4: N such commands, also at once, compute all of "
    "them into one --out; a part that is given again goes on where it stopped [all]",
    "coordinator": "HOST:PORT of process 0, for a command in several processes that no srun or "
    "mpirun starts",
    "processes": "number of processes that compute together; 1 is alone, also under srun [set by "
    "srun or mpirun, else 1]",
    "process": "number of this process, from 0 [set by srun or mpirun]",
    "resume": "go on where the run in --out stopped; begin it if there is none",
    "non_finite": "clients' updates with NaN or infinite numbers: exclude (and count), error, or "
    "keep (then runs whose model is not finite go on)",
}
# options of commands that train which are not settings
OF_TRAINING = (
    "compilation_cache", "out", "track", "checkpoint_every", "keep_checkpoints", "share",
    "coordinator", "processes", "process",
)  # fmt: skip
# default seeds of commands; `tune` and `compare` use different ones
SEEDS = {"compare": "10", "run": "1", "sweep": "3", "tune": "1000-1002"}
FACETS = ("results", "method", "seed")  # of `plot`
_LOCAL_WORK = {"local_steps", "local_epochs"}
_IN_ROUNDS = {"rounds", "eval_every", "cohort", "sampler", "work"}
_NO_FILE = ConfigFile()
_NO_PATH = Path()


class Command(click.Command):
    """A command that refuses an option that is given twice, unless it may be repeated."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's hook; raises UsageError for a repeated option."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for parameter in self.get_params(ctx):
            repeatable = isinstance(parameter, click.Argument) or parameter.multiple
            if not repeatable and given.count(parameter) > 1:
                raise click.UsageError(f"{parameter.opts[0]} is given twice; give it once")
        return super().parse_args(ctx, args)


class Commands(click.Group):
    """A group that answers an unknown command with the nearest known one."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's hook; raises UsageError for an unknown command."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(unknown("command", args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def add_options(
    texts: Mapping[str, str], many: Collection[str] = (), **metavars: str
) -> Callable[[Callable], Callable]:
    """Returns a decorator that adds an option for each name, with its help text."""

    def decorate(command: Callable) -> Callable:
        for name, text in reversed([*texts.items()]):
            look: Any = {"metavar": metavars.get(name, "VALUE"), "help": text}
            command = click.option(flag(name), name, multiple=name in many, **look)(command)
        return command

    return decorate


def settings_options(
    names: Iterable[str], texts: Mapping[str, str] = HELP, **defaults: Any
) -> Callable[[Callable], Callable]:
    """Returns a decorator that adds options for settings; the help shows `defaults` if given."""
    shown = {}
    for name in names:
        default = defaults.get(name, options(Settings)[name].default)
        text = f"{default:g}" if isinstance(default, float) else default
        shown[name] = texts[name] + ("" if default is None else f" [{text}]")
    return add_options(shown)


def shared_options(
    seeds: str, leave_out: Collection[str] = (), texts: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable], Callable]:
    """Returns a decorator that adds the options of training commands; see `settings_of`."""

    names = [name for name in options(Settings) if name not in leave_out]
    others = {name: HELP[name] for name in OF_TRAINING if name not in leave_out}
    metavars = {"track": "TRACKER", "out": "FOLDER", "compilation_cache": "FOLDER"}
    metavars["share"] = "I/N"

    def decorate(command: Callable) -> Callable:
        command = click.option("--resume", is_flag=True, help=HELP["resume"])(command)
        command = add_options(others, {"track"}, **metavars)(command)
        return settings_options(names, {**HELP, **texts}, seeds=seeds)(command)

    return decorate


def values_of(known: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the typed values of a command's given options that are `known`; no objects."""
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


def text_options(factory: Callable) -> list[Option]:
    """Returns the options of a factory that a text can give."""
    return [option for option in options(factory).values() if option.kind is not object]


def settings_of(
    values: dict[str, Any],
    seeds: str,
    config: ConfigFile = _NO_FILE,
    *,
    methods: Iterable[str] = (),
) -> Settings:
    """Makes the settings of a file and the command line; the command line takes precedence."""
    known = options(Settings)
    given = {name: text for name in known if (text := values.get(name)) is not None}
    from_file = dict(config.settings)
    if given.keys() & _LOCAL_WORK:  # steps replace a file's epochs, and epochs its steps
        from_file = {name: from_file[name] for name in from_file.keys() - _LOCAL_WORK}
    typed = from_file | {name: parse_setting(name, text) for name, text in given.items()}
    settings = Settings(**{"seeds": parse_seeds(seeds)} | typed)
    for name, text in given.items():
        _check_effect(name, text, settings, methods)
    return settings


def _check_effect(name: str, text: str, settings: Settings, methods: Iterable[str]) -> None:
    """Refuses an option that has no effect with the other options."""
    from fedjax_algos.participation.in_rounds import reads_system
    from fedjax_algos.runs.studies.method import parse_spec
    from fedjax_algos.wrappers import wrappers

    fix, wrapped = None, (each for method in methods for each in parse_spec(method)[2])
    if name == "evaluations" and settings.seconds is None:
        fix = "is for the virtual clock; give --seconds too"
    elif name == "system" and not (
        settings.in_system or any(reads_system(wrappers, each) for each in wrapped)
    ):
        fix = "is for the virtual clock, and in rounds for --failures late, --sampler in_session "
        fix += "and the wrapper oort; give --seconds or one of these too"
    elif name in _IN_ROUNDS and settings.seconds is not None:
        fix = "is for rounds and has no effect on the virtual clock; leave --seconds out"
    elif name == "held_out" and settings.evaluate_clients != "held_out":
        fix = "is for --evaluate-clients held_out; give that too"
    elif name == "personal_steps" and settings.evaluate_clients == "none":
        fix = "is for --evaluate-clients; give train or held_out there"
    require(not fix, f"{flag(name)} {text} {fix}, or leave it out")


def check_path(name: str, text: str | None) -> None:
    """Checks a path."""
    if text is not None and (not text or text.startswith("--") or "\0" in text):
        raise ValueError(
            f"{name}={text!r} is not a path; begin it with ./ if its name begins with --"
        )


def new_file(text: str | None, default: Path = _NO_PATH) -> Path:
    """Returns the file that --out names; it must not exist."""
    check_path("out", text)
    if text is not None and text.endswith("/"):
        raise ValueError(f"out={text!r} is a folder; leave the / out, or name a file in it")
    path = default if text is None else Path(text)
    with writing(path):
        if path.exists() or path.is_symlink():  # also a broken link
            raise ValueError(f"out={str(path)!r} exists; name another file or remove it")
    return path


def known_as(name: str, labels: Collection[str]) -> list[str]:
    """Returns the labels that a name means: itself, or the method of that name in each folder."""
    return [name] if name in labels else [own for own in labels if own.endswith(SEPARATOR + name)]


def labels_of(texts: tuple[str, ...], rows: list[Row]) -> dict[str, str]:
    """Parses texts OLD=NEW that replace labels; a label may contain equals signs."""
    columns = ("method", "results")
    known = dict.fromkeys(str(row[name]) for name in columns for row in rows if name in row)
    labels: dict[str, str] = {}
    for text in texts:
        parts = text.split("=")
        splits = [("=".join(parts[:i]), "=".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]
        require(splits, f"label={text!r} has no new text; give OLD=NEW")
        found = [(old, new) for old, new in splits if known_as(old, known)]
        if not found:
            raise ValueError(unknown("label", splits[-1][0], known))
        old, new = found[0]
        for label in known_as(old, known):
            require(label not in labels, f"label={old!r} is given twice; give it once")
            labels[label] = new if label == old else label.removesuffix(old) + new
    return labels
