"""`pytest --costs`: the processor time of folders and of the slowest tests, by phases of jax."""

import resource
from collections import Counter

import jax
import pytest

PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "tracing",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
SLOWEST = 100


class Costs:
    """Measures each test with its fixtures; processes that it waited for count as well."""

    def __init__(self):
        self.rows = []  # (test, Counter of seconds)
        self.phases = Counter()
        jax.monitoring.register_event_duration_secs_listener(self.listen)

    def listen(self, event, duration, **details):
        if event in PHASES:
            self.phases[PHASES[event]] += duration

    def seconds(self):
        whole = Counter(self.phases)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(who)
            whole["all"] += used.ru_utime + used.ru_stime
        return whole

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        before = self.seconds()
        result = yield
        spent = self.seconds()
        spent.subtract(before)
        self.rows.append((item.nodeid, spent))
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.rows += [(test, Counter(spent)) for test, spent in node.workeroutput["costs"]]

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = [(t, dict(spent)) for t, spent in self.rows]

    def pytest_terminal_summary(self, terminalreporter):
        folders = {}
        for test, spent in self.rows:
            folder = test.partition("::")[0].rpartition("/")[0]
            folders.setdefault(folder, Counter()).update(spent)
        slowest = sorted(self.rows, key=lambda row: -row[1]["all"])[:SLOWEST]
        whole = sum(folders.values(), Counter())
        line = "{:>8} {:>8} {:>9}  {}"
        terminalreporter.write_line(line.format("seconds", "tracing", "compiling", ""))
        ranked = sorted(folders.items(), key=lambda row: -row[1]["all"])
        for name, spent in [("all", whole), *ranked, *slowest]:
            figures = [f"{spent[key]:.1f}" for key in ("all", "tracing", "compiling")]
            terminalreporter.write_line(line.format(*figures, name))
