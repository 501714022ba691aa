"""What the tests of bad inputs share."""

import contextlib
import re

import pytest
from hypothesis import HealthCheck, settings

SMALL = {"--model": "linear", "--clients": "12", "--cohort": "4", "--rounds": "2", "--seeds": "1"}
quick = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def small(**changes):
    """The options of a small run, of which some are replaced or left out."""
    values = SMALL | {f"--{name.replace('_', '-')}": text for name, text in changes.items()}
    return [text for flag, value in values.items() if value is not None for text in (flag, value)]


@contextlib.contextmanager
def refused(path):
    """A block that raises an error of one line, which begins with a path."""
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}") as error:
        yield
    assert str(error.value).isprintable()
