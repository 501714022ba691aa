"""What the tests of bad inputs share."""

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
