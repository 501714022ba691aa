"""What the tests of bad inputs share."""

from hypothesis import HealthCheck, settings

SMALL = ["--model", "linear", "--clients", "12", "--cohort", "4", "--rounds", "2", "--seeds", "1"]
WRONG = [  # texts that no option has, but for paths
    *("", " ", "\t", "x", "é", "\u202e", "\x1b[31m", "a\nb", "\0", "\udcff", "[red]x[/red]", "$^$"),
    *("-1", "-inf", "nan", "inf", "1e400", "9" * 5000, "0x10", "1;2", "½", "²", "x" * 10**5),
    *("--", "--rounds", "-x", "None", "a=b", "a:b", "a@b", ":", "=", "@", ",", "/", "{}"),
]  # fmt: skip
UNLIKELY = ["0", "-0", "1_000", "1e-400", "1.5", "٣", "1,2", "1-2", "2-1", "-", "1,", "2", "True"]
checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
quick = settings(derandomize=True, database=None, deadline=None, suppress_health_check=checks)
