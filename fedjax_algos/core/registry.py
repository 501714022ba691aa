"""Registries of factories by name; type checkers see each factory's signature."""

import functools
import importlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, get_args

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import require_regular
from fedjax_algos.core.options import Option, check_value, options, require_option, unknown
from fedjax_algos.core.specs import parse_options, split_specs

own_places: set[Path] = set()  # the modules and packages of the user's factories
_PACKAGE = Path(__file__).parents[1]
_PROGRAM = Path(sys.argv[0])
P = ParamSpec("P")
T = TypeVar("T")


class Registry(dict[str, Callable[..., T]], Generic[T]):
    """Factories of one kind by name, such as `fa.models.models["mlp"]`, which is `fa.models.mlp`.

    A name with a colon is a user's factory, `my_file.py:fedinit` or `package.module:fedinit`. It
    is imported on first use. `kind` is what messages call a product, and `product` is its type.
    """

    def __init__(self, kind: str, product: Any = object):
        super().__init__()
        self.kind, self.product = kind, product

    def register(self, factory: Callable[P, T]) -> Callable[P, T]:
        """Adds a factory under its name and returns it with its options checked at each call."""
        name = factory.__name__
        place, known = factory.__module__, getattr(self.get(name), "__module__", None)
        text = f"{self.kind} {name!r} is registered by {known} already"
        require(known in (None, place), f"{text}; choose another name in {place}")
        self[name] = checked = _checked(factory)
        return checked

    def __missing__(self, name: str) -> Callable[..., T]:
        fix = "options follow a name and a colon, as in NAME:OPTION=VALUE"
        text = f"unknown {self.kind} {name!r}; {fix}"
        require(":" in name, text if "=" in name else unknown(self.kind, name, sorted(self)))
        factory = _imported(name)
        self[name] = factory if factory in self.values() else self._own(name, factory)
        return self[name]

    def _own(self, reference: str, factory: Callable[..., T]) -> Callable[..., T]:
        """Wraps a user's factory in checks of its signature, keywords and results."""
        arguments = _positional(next(iter(self.values())), required=True)
        kinds = get_args(self.product) or (self.product,)
        product = " or ".join(kind.__name__.split(".")[-1] for kind in kinds)
        fix = f"give a function ({', '.join([*arguments, '*', '...'])}) -> {product}"
        try:
            function = inspect.unwrap(factory)
            module = str(getattr(function, "__module__", "")).partition(".")[0]
            is_class = inspect.isclass(function)
            fits = issubclass(function, self.product) if is_class else hasattr(function, "__name__")
            if not fits or inspect.isbuiltin(function) or module in sys.stdlib_module_names:
                raise TypeError("it is not a function, or is a part of Python")
            required = [option.name for option in options(factory).values() if option.required]
            inspect.signature(factory).bind(*arguments, **dict.fromkeys(required))
            checked = _checked(factory)
        except (TypeError, ValueError, NameError, AttributeError) as error:
            raise ValueError(f"{reference!r} cannot be the {self.kind} ({error}); {fix}") from error
        place = sys.modules.get(module)
        places = getattr(place, "__path__", [getattr(place, "__file__", None)])
        own_places.update(Path(place) for place in places if place)

        @functools.wraps(factory)
        def call_own_factory(*args: Any, **keywords: Any) -> T:
            result = checked(*args, **keywords)
            if not isinstance(result, self.product):
                raise ValueError(f"{reference!r} returns a {type(result).__name__}; {fix}")
            return result

        return call_own_factory

    def __repr__(self) -> str:
        return f"{len(self)} {self.kind}s: {', '.join(sorted(self))}"

    def parse(
        self, spec: str, more: Mapping[str, Option] | None = None, last: str = ""
    ) -> tuple[str, dict[str, Any]]:
        """Returns a spec's name and typed options; option `last` takes all text after `last=`."""
        name, colon, text = spec.partition(":")
        if name not in self and (name.endswith(".py") or (text and _is_module(name))):
            function, colon, text = text.partition(":")
            name = f"{name}:{function}"
        known = options(self[name])
        message = f"{spec!r} has no options after the colon; leave it out, or give one"
        require(text or not colon, message)
        first = next(iter(known), "")
        return name, parse_options(text, {**known, **(more or {})}, name, first=first, last=last)

    def parse_all(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        """Returns the names and options of comma-separated specs; each may be given only once."""
        specs = split_specs(text)
        parsed = [self.parse(spec) for spec in specs]
        for spec, each in zip(specs, parsed, strict=True):
            require(parsed.count(each) == 1, f"{self.kind} {spec!r} is given twice; give it once")
        return parsed

    def make(self, spec: str, *args: Any) -> T:
        """Calls the factory that a spec names with these arguments and the spec's options."""
        name, values = self.parse(spec)
        return self[name](*args, **values)


def _checked(factory: Callable[P, T]) -> Callable[P, T]:
    """Wraps a factory in a check of its options."""
    name, positional = factory.__name__, _positional(factory)

    @functools.wraps(factory)
    def checked(*args: P.args, **keywords: P.kwargs) -> T:
        known = options(factory)
        for keyword, value in keywords.items():
            if keyword not in positional:
                check_value(require_option(known, keyword, name), value, name)
        for option in known.values():
            text = f"{name} needs {option.name}; give {name}:{option.name}=..."
            require(option.name in keywords or not option.required, text)
        return factory(*args, **keywords)

    return checked


def _positional(factory: Callable, required: bool = False) -> list[str]:
    """Returns the names of the positional parameters, or of those without a default."""
    parameters = inspect.signature(factory).parameters.values()
    positional = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return [each.name for each in positional if not required or each.default is each.empty]


def _imported(reference: str) -> Any:
    """Imports the function that `FILE.py:NAME` or `package.module:NAME` refers to."""
    place, _, name = reference.rpartition(":")
    try:
        if place.startswith(".") and not place.endswith(".py"):
            raise ImportError("a module's name begins with its package's name")
        module = _file_module(place) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, OSError, SyntaxError) as error:
        found = f"{reference!r} cannot be imported ({type(error).__name__}: {error})"
        raise ValueError(f"{found}; give FILE.py:NAME or package.module:NAME") from error
    if not callable(getattr(module, name, None)):
        names = [key for key, value in vars(module).items() if callable(value)]
        problem = unknown("function", name, names) if name else "no function is named"
        raise ValueError(f"{place}: {problem}; give {place}:NAME")
    return getattr(module, name)


def is_own(file: Path) -> bool:
    """Returns whether a file is the user's, or is in a package that the user named in a spec."""
    if any(map(file.is_relative_to, own_places)):
        return True
    paths = [_PACKAGE, *(Path(sysconfig.get_path(n)) for n in ("stdlib", "purelib", "platlib"))]
    return file.exists() and not any(map(file.is_relative_to, paths)) and file != _PROGRAM


def _is_module(name: str) -> bool:
    """Returns whether a name that is not registered names a module."""
    if "." in name or name in sys.modules:
        return True
    return name.isidentifier() and importlib.util.find_spec(name) is not None


def _file_module(path: str) -> Any:
    """Imports a file as a module; the name is its whole path, so that no names clash."""
    require_regular(path)
    name = str(Path(path).resolve().with_suffix("")).replace(".", "_")
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses, such as Flax's layers, look up their Python module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
