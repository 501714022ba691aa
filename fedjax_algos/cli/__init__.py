"""The command line: `fedjax-algos compare | run | sweep | tune | pack | table | plot | report |
list`.

`options.py` has the options that all commands that train share, and `environment.py` what surrounds
their training. Each command is in the file of its name, but for `compare` and `run` in
`training.py`. Add a new one to `COMMANDS`.
"""

import sys
import sysconfig
import traceback
from pathlib import Path

import click

from fedjax_algos.cli.options import Commands
from fedjax_algos.cli.pack import pack_command
from fedjax_algos.cli.plot import plot
from fedjax_algos.cli.registries import list_names
from fedjax_algos.cli.report import report
from fedjax_algos.cli.sweep import sweep
from fedjax_algos.cli.table import table
from fedjax_algos.cli.training import compare, run
from fedjax_algos.cli.tune import tune
from fedjax_algos.core.options import unknown
from fedjax_algos.core.texts import printable

_PACKAGE = Path(__file__).parents[1]
_PROGRAM = Path(sys.argv[0])
_MAX_CHARACTERS = 2000  # of an error
COMMANDS = (compare, run, sweep, tune, pack_command, table, plot, report, list_names)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fedjax_algos")
def cli() -> None:
    """Federated learning, simulated in JAX."""


for _command in COMMANDS:
    cli.add_command(_command)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line. A usage error is one line on standard error, and exit code 2.

    So is a ValueError that this package raises itself, wherever it arises. Every other error keeps
    its traceback, and asks for a report unless code of the user's own is part of it.

    Args:
      arguments: of the command; None: those of the process.
    """
    if "" not in sys.path:
        sys.path.append("")  # for package.module:NAME in the working folder
    try:
        given = sys.argv[1:] if arguments is None else arguments
        cli.main(given, prog_name="fedjax-algos", standalone_mode=False, obj=given)
    except click.exceptions.NoSuchOption as error:
        command = error.ctx and error.ctx.command.get_params(error.ctx)
        names = [name for p in command or () for name in p.opts if name.startswith("-")]
        _fail(unknown("option", error.option_name, names))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.UsageError as error:
        _fail(error.format_message())
    except click.exceptions.Abort:
        _fail("interrupted", code=130)
    except Exception as error:
        files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, ValueError) and files[-1].is_relative_to(_PACKAGE):
            _fail(str(error))
        if not any(map(_is_own, files)):
            error.add_note("This is a fault of fedjax_algos: please report it with these lines.")
        raise


def _is_own(file: Path) -> bool:
    """Whether a file is the user's, and not of this package, of another one, or of Python."""
    places = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    installed = [_PACKAGE, *map(Path, places)]
    return file.exists() and not any(map(file.is_relative_to, installed)) and file != _PROGRAM


def _fail(message: str, code: int = 2) -> None:
    line = printable(" ".join(message.split()), longest=_MAX_CHARACTERS)
    click.echo(f"error: {line}", err=True)
    sys.exit(code)
