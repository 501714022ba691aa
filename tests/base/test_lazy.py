"""What `import fedjax_algos` and the help of commands import; packages that import on first use."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fedjax_algos as fa

LAZY = [fa, fa.core, fa.analysis, fa.analysis.pictures, fa.runs]
PROGRAM = """
import contextlib
import sys

LINES = "compare fedavg --rounds x", "sweep a --rounds x", "tune a --rounds x", "costs a"
LINES += "pack a b", "table a", "plot a", "report a"

class Refused:
    def __init__(self, refuses):
        self.refuses = refuses

    def find_spec(self, name, path=None, target=None):
        if self.refuses(name.partition(".")[0]):
            raise ModuleNotFoundError(f"{name} is refused", name=name)

slow = {"jax", "jaxlib", "flax", "optax", "rich", "scipy", "matplotlib", "tensorboardX", "wandb"}
sys.meta_path.insert(0, Refused(slow.__contains__))
from fedjax_algos.cli import cli, main
for name in cli.commands:
    main([name, "--help"])
main(["--help"])
del sys.meta_path[0]
for line in LINES:
    with contextlib.suppress(SystemExit):
        main(line.split())
loaded = {"matplotlib", "rich.progress", "scipy", "tensorboardX", "wandb"} & {*sys.modules}
assert not loaded, loaded

import jax, flax.nnx, optax, scipy  # which JAX needs
used = {"click", "filelock", "google", "matplotlib", "PIL", "rich", "sklearn", "tomli_w"}
for name in [*sys.modules]:
    if name.partition(".")[0] in {"fedjax_algos", *used}:
        del sys.modules[name]
known = {name.partition(".")[0] for name in sys.modules} | sys.stdlib_module_names
sys.meta_path.insert(0, Refused(lambda name: name not in {"fedjax_algos", *known}))
import fedjax_algos
packages = [fedjax_algos]
for package in packages:
    for name in package.__all__ if hasattr(package, "__all__") else dir(package):
        value = getattr(package, name)
        if hasattr(value, "__path__") and value.__name__.startswith("fedjax_algos"):
            packages.append(value)
"""


def test_help_needs_no_jax_wrong_lines_nothing_slow_and_the_package_no_other_library():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
def test_what_a_package_lists_is_found(package):
    modules = {path.stem for path in Path(package.__file__).parent.iterdir()}
    for name in package.__all__:
        found = getattr(package, name)
        assert name in dir(package)
        # a module of the name of a function would hide it
        assert name not in modules or found is importlib.import_module(f"{package.__name__}.{name}")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing
