"""The command line: `fedjax-algos compare | run | sweep | tune | costs | pack | table | plot |
report | list`.

`commands.py` declares the commands, and `options.py` the options that they share. Other files do
the work: `training.py` for `compare`, `run` and `sweep`, `finished.py` for `table`, `plot` and
`report`, and a file of its name for `tune`, `costs` and `pack`. `environment.py` sets up devices,
folders and signals for training. A command imports JAX when it is called.
"""

import contextlib
import errno
import gc
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedjax_algos.base.reprs import printable
from fedjax_algos.cli.commands import cli
from fedjax_algos.core.registry import is_own, own_places
from fedjax_algos.runs.loops.interruption import Interrupted, end_at_once, interruption

open_folders: list[Path] = []  # the results folder of the command, once it is open
_PACKAGE = Path(__file__).parents[1]
_MAX_CHARACTERS = 2000  # of an error message
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # the disk or the quota is full


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line.

    A usage error, or a ValueError of this package, prints one line on standard error; exit code 2.
    If standard output cannot be written, one line says so; exit code 1. A closed pipe ends the
    command silently. Any other error keeps its traceback. It asks the user to report the error,
    unless the traceback goes through the user's code. After SIGINT or SIGTERM, one line says how to
    continue; exit code 128 + signal.

    Args:
      arguments: the command's arguments; None reads them from `sys.argv`.
    """
    if "" not in sys.path:
        sys.path.append("")  # for package.module:NAME in the working folder
    if arguments is None:
        sys.excepthook = print_error
        gc.set_threshold(300_000)  # imports and traces make many objects that stay
        arguments = sys.argv[1:]
    on_second_signal = partial(_say_interrupted, arguments)
    open_folders.clear()
    is_main = threading.current_thread() is threading.main_thread()  # others handle no signals
    try:
        with end_at_once(on_second_signal) if is_main else contextlib.nullcontext():
            _run(arguments)
    except Interrupted as error:
        on_second_signal(error.signal_number)
        if error.alone and _process():  # jax would wait for the other processes and print errors
            os._exit(128 + error.signal_number)
        sys.exit(128 + error.signal_number)


def print_error(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Prints a traceback with control characters escaped, since they could overwrite text."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write("".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text))


def _run(arguments: list[str]) -> None:
    """Runs the command; handles errors as `main` describes."""
    try:
        cli.main(arguments, prog_name="fedjax-algos", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.UsageError as error:
        _fail(error.format_message())
    except click.exceptions.Abort:
        _fail("interrupted", code=130)
    except (Exception, SystemExit) as error:
        if (number := interruption()) is not None:  # a library turned the signal into an error
            raise Interrupted(number, alone=True) from None
        from fedjax_algos.cli import processes
        from fedjax_algos.engine.placed.processes import FirstProcessError
        from fedjax_algos.runs.loops.run import OtherRunError

        frames = traceback.extract_tb(error.__traceback__)
        files = [Path(frame.filename) for frame in frames]
        if isinstance(error, FirstProcessError):  # process 0 prints it
            sys.exit(2)
        processes.end_if_lost(error, _how_to_continue(arguments))
        if isinstance(error, ValueError) and files[-1].is_relative_to(_PACKAGE):
            _fail(*(str(error).splitlines() if isinstance(error, OtherRunError) else [str(error)]))
        # jax may have removed the frames of the user's factory, but not its caller's
        custom = any(map(is_own, files)) or any(f.name == "call_own_factory" for f in frames)
        # an error about a file has its name, and `writing` turns it into a ValueError
        if isinstance(error, OSError) and error.errno in _FULL and not (custom or error.filename):
            with contextlib.suppress(OSError):  # Python would try to write again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _fail(f"standard output cannot be written ({error.strerror}); make room", code=1)
        if custom and isinstance(error, SystemExit):  # else click's, after a closed pipe
            _fail(f"your own code called sys.exit({error.code!r}); let it raise an error instead")
        if not custom:
            note = "This is a fault of fedjax_algos: please report it with these lines."
            if own_places:
                first = "Look first for a mistake in your own function: does it do what its "
                note = f"{first}docstring (or the one of fa.Algorithm) says? If it does: {note}"
            error.add_note(note)
        raise


def _say_interrupted(arguments: Sequence[str], number: int) -> None:
    """Prints how to continue after an interruption; a signal handler may also call it."""
    with contextlib.suppress(OSError, RuntimeError):
        if not _process() or _process().startswith("process 0 "):
            name = signal.Signals(number).name
            click.echo(f"interrupted ({name}); {_how_to_continue(arguments)}", err=True)


def _how_to_continue(arguments: Sequence[str]) -> str:
    """Says what to do after an interruption, from the state of the results folder."""
    if not open_folders:
        return "give the same command again"
    from fedjax_algos.runs.studies.folder_content import read_configuration

    path, content = open_folders[-1], None
    with contextlib.suppress(ValueError):
        content = read_configuration(path)
    if not content:
        return "nothing was saved: give the same command again"
    if content["complete"]:
        return f"all results are in {printable(path)}"
    command = ["fedjax-algos", *arguments]
    if not any(each.split("=")[0] == "--out" for each in arguments):
        command += ["--out", str(path)]
    command += ["--resume"] * ("--resume" not in arguments)
    return f"go on with: {shlex.join(command)}"


def _process() -> str:
    """Names this process in errors if it is one of several; they have imported `processes`."""
    return getattr(sys.modules.get("fedjax_algos.cli.processes"), "name", str)()


def _fail(*lines: str, code: int = 2) -> None:
    lines = tuple(printable(" ".join(line.split()), longest=_MAX_CHARACTERS) for line in lines)
    click.echo(f"error: {_process()}" + "\n  ".join(lines), err=True)
    sys.exit(code)
