"""The structure of the package: folders, imports, docstrings and the glossary."""

import ast
import functools
import graphlib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest
from flax import linen as nn
from helpers import public_names

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.cli.commands import REGISTRIES, registry_of

ROOT, TESTS = Path(fa.__file__).parent, Path(__file__).parent
# a folder imports only from those before it, and from itself
FOLDERS = (
    "base core data models participation asynchrony algorithms wrappers engine analysis runs cli"
)
FOLDERS = FOLDERS.split()
MODULES = [module.name for module in pkgutil.walk_packages(fa.__path__, "fedjax_algos.")]
MODULES = sorted({*MODULES} - {"fedjax_algos.__main__"})


@functools.cache
def imports_of(path):
    """(module, name) of each import of this package in a file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedjax_algos":
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(a.name, "") for a in node.names if a.name.startswith("fedjax_algos.")]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "fa":
            found += [("fedjax_algos", node.attr)] * (not node.attr.startswith("__"))
    return found


STREAMS = {  # tags of NumPy's random streams
    "asynchrony/planning.py": "_NEXT_CLIENT",
    "data/partitioning/shifts.py": "_NOISE",
    "participation/local_work.py": "_PARTIAL _SPEEDS",
    "participation/sampling.py": "_GROUPS _MEMBERS _SHARES _CHOICE _REPLACED",
    "participation/systems/fedscale.py": "_SESSIONS _DEVICES",
    "participation/systems/simulated.py": "_JITTER _CHANGES _UNAVAILABLE",
}
UNTAGGED = {  # the number of clients, and hashes
    "data/partitioning/base.py",
    "runs/studies/search_space.py",
}


def test_random_streams_of_a_seed_have_different_tags():
    files = {p.relative_to(ROOT).as_posix(): p.read_text() for p in ROOT.rglob("*.py")}
    drawing = {path for path, text in files.items() if "default_rng([" in text}
    assert drawing == STREAMS.keys() | UNTAGGED
    tags = []
    for path, names in STREAMS.items():
        module = importlib.import_module(f"fedjax_algos.{path[:-3].replace('/', '.')}")
        tags += [getattr(module, name) for name in names.split()]
    assert len({*tags}) == len(tags)


def test_the_root_holds_folders():
    entries = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"}
    files = {"__init__.py", "__main__.py", "_version.py", "py.typed"}
    assert entries == {*FOLDERS, *files}


def test_imports_point_downwards():
    allowed = {"_version"}
    for folder in FOLDERS:
        allowed.add(folder)
        for path in (ROOT / folder).rglob("*.py"):
            for module, name in imports_of(path):
                loops = "loops" in path.parts and f"{module}.".startswith(
                    "fedjax_algos.runs.studies."
                )
                assert not loops, f"{path.relative_to(ROOT)} imports {module}"
                imported = module.split(".")[1] if "." in module else name
                assert imported in allowed, f"{path.relative_to(ROOT)} imports {module}.{name}"


def test_no_circle_of_imports():
    """Of files; what a folder exports is not followed."""
    files = {name: Path(importlib.util.find_spec(name).origin) for name in MODULES}
    files = {name: path for name, path in files.items() if path.name != "__init__.py"}
    named = {n: [(m, f"{m}.{i}") for m, i in imports_of(path)] for n, path in files.items()}
    graph = {
        name: {each for pair in own for each in pair} & files.keys() for name, own in named.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_programs_import_what_exists():
    """Of studies and benchmarks, which no other test runs."""
    folders = (TESTS.parent / name for name in ("experiments", "benchmarks"))
    for path in [path for folder in folders for path in folder.rglob("*.py")]:
        for module, name in imports_of(path):
            found = importlib.import_module(module)
            known = not name or hasattr(found, name) or f"{module}.{name}" in MODULES
            assert known, f"{path} imports {module}.{name}"


def test_each_mutant_has_its_place():
    root = TESTS.parent
    mutants = tomllib.loads((root / "experiments/mutants.toml").read_text())["mutant"]
    texts = {each["file"]: (root / each["file"]).read_text() for each in mutants}
    assert [each["old"] for each in mutants if texts[each["file"]].count(each["old"]) != 1] == []


def test_no_private_name_is_imported():
    for path in [*ROOT.rglob("*.py"), *TESTS.rglob("*.py")]:
        private = [name for _, name in imports_of(path) if name.startswith("_")]
        assert set(private) <= {"__version__", "_version"}, path


def test_tests_mirror_the_folders():
    files = (path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    folders = {path.parent.as_posix() for path in files} - {".", "typing", "papers"}
    assert folders <= {path.parent.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")}
    assert {folder.split("/")[0] for folder in folders} == set(FOLDERS)


def test_an_exchange_and_a_server_step_are_written_once():
    """In the engine, two files alone call the functions of an algorithm that train and sum."""
    called = re.compile(r"\.(client_update|contribute|decode|server_update)\b")
    paths = (ROOT / "engine").rglob("*.py")
    names = {path.name for path in paths if called.search(path.read_text())}
    assert names == {"exchange.py", "server_step.py"}


def test_every_file_of_an_algorithm_is_exported():
    for path in (ROOT / "algorithms").glob("*/*.py"):
        for name in re.findall(r"@algorithms\.register\ndef (\w+)", path.read_text()):
            assert getattr(fa.algorithms, name) is algorithms[name]


def exported():
    """What the package or one of its folders exports, the classes' methods, and the factories."""
    for registry in map(registry_of, REGISTRIES):
        yield from registry.items()
    for module_name in ["fedjax_algos", *MODULES]:
        module = importlib.import_module(module_name)
        for name in public_names(module):
            value = getattr(module, name)
            if not getattr(value, "__module__", "").startswith("fedjax_algos"):
                continue
            yield name, value
            for method, attribute in vars(value).items() if inspect.isclass(value) else ():
                function = getattr(attribute, "__func__", attribute)
                own = getattr(function, "__module__", "").startswith("fedjax_algos")
                if own and not method.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{method}", function


EXPORTED = {
    name: value
    for name, value in exported()
    if inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value))
}


def described(docstring):
    """The parameters that the section `Args:` of a docstring names."""
    section = re.search(r"\bArgs:\n(.*?)(?:\n\s*\n\s*\w+:\n|\Z)", docstring, re.DOTALL)
    if section is None:
        return set()
    entries = re.findall(r"^\s*((?:\*{0,2}\w+, )*\*{0,2}\w+): ", section.group(1), re.MULTILINE)
    return {name.strip("* ") for entry in entries for name in entry.split(",")}


def test_docstrings_name_every_parameter_and_field():
    """`help` does not show comments. The fields of Flax's modules are Flax's own."""
    for name, value in EXPORTED.items():
        assert value.__doc__, f"{name} has no docstring of its own"
        if not inspect.isclass(value):
            parameters = set(inspect.signature(inspect.unwrap(value)).parameters) - {"self", "cls"}
            assert parameters - described(inspect.getdoc(value)) == set(), name
        elif not issubclass(value, nn.Module):
            fields = getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", ())
            assert set(fields) <= set(re.findall(r"\w+", value.__doc__)), name


def test_docstrings_give_shapes():
    """Of the types that a user's functions receive."""
    any_tree = {"server", "statistics", "origin", "excluded", "weight", "frozen"}
    kinds = fa.Dispatch, fa.ClientData, fa.FederatedData, fa.Stack, fa.Mean, fa.FederatedState
    for kind in kinds:
        section = inspect.cleandoc(kind.__doc__).partition("Attributes:\n")[2]
        entries = dict(re.findall(r"^ {2}(\w+): (.*(?:\n {4}.*)*)", section, re.MULTILINE))
        assert tuple(entries) == kind._fields
        assert {name for name, text in entries.items() if "[" not in text} <= any_tree


def test_docstrings_of_modules_and_of_what_they_define():
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        assert module.__doc__, module_name
        for name, value in vars(module).items():
            own = not name.startswith("_") and getattr(value, "__module__", None) == module_name
            if own and (inspect.isfunction(inspect.unwrap(value)) or inspect.isclass(value)):
                assert value.__doc__, f"{module_name}.{name}"


def test_no_text_in_a_docstring_is_a_letter_alone():
    """It says too little, and Sphinx reads `N.` as the number of a list."""
    letter = re.compile(r"""(: |"{3})[A-Za-z]\.("{3})?$""", re.MULTILINE)
    assert [path for path in ROOT.rglob("*.py") if letter.search(path.read_text())] == []


def test_docstrings_of_factories():
    """The first line stands in lists on the command line."""
    for registry in map(registry_of, REGISTRIES):
        for name, factory in registry.items():
            assert ":" in name or 20 < len((factory.__doc__ or "").split("\n")[0]) <= 100, name


def test_the_glossary_has_every_public_class_and_every_folder():
    glossary = TESTS.parent / "docs" / "glossary.md"
    if not glossary.exists():
        pytest.skip("the documentation is not part of this copy")
    named = set(re.findall(r"`([^`\n]+)`", glossary.read_text()))
    folders = {path.parent.relative_to(ROOT) for path in ROOT.rglob("__init__.py")}
    wanted = {f"{folder.as_posix()}/" for folder in folders if folder.parts}
    classes = {name for name, value in EXPORTED.items() if inspect.isclass(value)}
    assert sorted((wanted | classes) - named) == []
