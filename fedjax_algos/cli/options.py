"""What every command that trains is asked, and the settings that the answers mean."""

import contextlib
import os
from typing import Any

import click
import jax

from fedjax_algos.cli.config_file import ConfigFile
from fedjax_algos.core.registry import Option, one_of, options, parse_value, unknown
from fedjax_algos.engine.devices import usable_cores
from fedjax_algos.runs.settings import Settings

HELP = {
    "dataset": "name of a data set, see `list datasets`",
    "model": "name of a model, see `list models`",
    "partition": "how examples are divided over clients, see `list partitions`",
    "clients": "number of clients",
    "cohort": "clients in a round, or below 1 their fraction",
    "sampler": "who is in a round, see `list samplers`",
    "work": "who does how much of a complete turn, see `list works`",
    "rounds": "communication rounds",
    "local_steps": "steps of a client in a round [10 unless --local-epochs is given]",
    "local_epochs": "passes of a client over its data in a round, instead of steps; 0.5 is half",
    "batch_size": "examples of a local step",
    "batches": f"how they are taken: {one_of(options(Settings)['batches'].choices)}",
    "client_learning_rate": "rate of the local steps [the method's own, else 0.1]",
    "rate_schedule": "how that rate moves, see `list rate_schedules`",
    "rate_by": "what moves it: round, or visit (a client's own turns)",
    "weight_decay": "times the params, added to a client's gradient after clipping",
    "clip_norm": "largest norm of a client's gradient, after the method's correction; 0 is any",
    "server_learning_rate": "rate of the server's step [the method's own]",
    "seeds": "a number of seeds (5), a range (10-14) or a list (3,7)",
    "eval_every": "rounds between evaluations",
    "target": "test accuracy whose rounds and upload are measured [the first method's best]",
    "seconds": "virtual seconds: run on the virtual clock, each method on its own schedule",
    "weather": "speeds and absences on the virtual clock, see `list weathers`",
    "evaluations": "evaluations on the virtual clock",
    "layout": "auto (timed once), vmapped, sequential, or clients computed at once",
    "devices": "over which a cohort, a wave or a sweep is divided [timed, one, or all: see README]",
    "client_state": "where clients' own state lives between rounds: device or host",
    "examples": "where they are: replicated on all devices, or sharded by client",
}
_WORK_OF_A_TURN = {"local_steps", "local_epochs"}


@contextlib.contextmanager
def told_in_one_line():
    """A ValueError about what the user gave becomes a usage error; none from training does."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error


class Commands(click.Group):
    """A group whose unknown names are told with the nearest known one."""

    what = "command"

    def resolve_command(self, ctx, args):
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(unknown(self.what, args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def shared_options(seeds: str):
    """The options of every command that trains; `settings_of` takes those that are settings."""

    def decorate(command):
        command = click.option("--out", metavar="FOLDER", help="results folder")(command)
        command = click.option(
            "--compilation-cache",
            metavar="FOLDER",
            help="keeps compiled programs, and reads those of earlier runs [none]",
        )(command)
        for option in reversed(options(Settings).values()):
            default = seeds if option.name == "seeds" else option.default
            shown = f" [{default:g}]" if isinstance(default, float) else f" [{default}]"
            shown = "" if default is None else shown
            command = click.option(
                flag(option.name), default=None, metavar="VALUE", help=HELP[option.name] + shown
            )(command)
        return command

    return decorate


def flag(name: str) -> str:
    """An option's name as the command line has it."""
    return "--" + name.replace("_", "-")


def range_of(option: Option) -> str:
    """An option's choices or range, and its default."""
    what = (
        " or ".join(option.choices) if option.choices else str(option.range or option.kind.__name__)
    )
    return f"{what} [{'needed' if option.required else option.default}]"


def settings_of(values: dict[str, Any], seeds: str, config: ConfigFile | None = None) -> Settings:
    """The settings of a file, where there is one, and of the command line, which goes first.

    Args:
      values: the command's keywords; those that are no settings, or None, are passed over.
      seeds: the command's own default.
      config: a file of settings.

    Raises:
      ValueError: for a value that means none, or is out of range.
    """
    known = options(Settings)
    given = {name: text for name, text in values.items() if name in known and text is not None}
    from_file = dict(config.settings) if config else {}
    if given.keys() & _WORK_OF_A_TURN:  # one of the two takes the place of the other
        from_file = {name: from_file[name] for name in from_file.keys() - _WORK_OF_A_TURN}
    owner = config.path if config else ""
    parsed = {name: _parsed(known[name], text, owner) for name, text in from_file.items()}
    parsed |= {name: _parsed(known[name], text) for name, text in given.items()}
    return Settings(**{"seeds": _seeds(seeds)} | parsed)


def _parsed(option: Option, text: str, owner: str = "") -> Any:
    if option.name == "seeds":
        return _seeds(text, owner)
    return parse_value(option, text, owner)


def _seeds(text: str, owner: str = "") -> tuple[int, ...]:
    try:
        if "-" in text:
            first, last = map(int, text.split("-"))
            seeds = tuple(range(first, last + 1))
        elif "," in text:
            seeds = tuple(int(part) for part in text.split(",") if part)
        else:
            seeds = tuple(range(int(text)))
    except ValueError:
        seeds = ()
    if not seeds:
        raise ValueError(
            f"{owner}: " * bool(owner) + f"seeds={text!r} is out of range; give a number (5), "
            "a range (10-14) or a list (3,7)"
        )
    return seeds


def start_devices(asked: int | None) -> None:
    """A CPU device for each core, or as many as asked, unless jax has started or was told."""
    told = "device_count" in os.environ.get("XLA_FLAGS", "")
    # its type knows no such attribute
    if getattr(jax.config, "jax_num_cpu_devices", -1) == -1 and not told:
        with contextlib.suppress(RuntimeError):  # it has started
            jax.config.update("jax_num_cpu_devices", asked or usable_cores())
