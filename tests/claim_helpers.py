"""Files of claims for tests."""

import tomli_w
from claim_files.measured import write_measured

ROUNDS = "rounds to 65%"
CLAIM = {
    "item": "Table I",
    "claim": "A needs half of B's rounds.",
    "printed": "a large setting",
    "differences": ["a smaller model"],
    "stand_ins": [],
    "program": "table_1.py",
    "seeds": 3,
    "minutes": 2,
    "seen": "A needs fewer rounds.",
    "paper": [{"measure": ROUNDS, "values": {"a": 60, "b": 116}}],
    "orders": [{"measure": ROUNDS, "lower": "a", "than": ["b"]}],
}
NOT_RUN = dict.fromkeys(("stand_ins", "program", "seeds", "minutes", "seen", "orders"))
PAPER = {
    "title": "A paper",
    "authors": "A. Author",
    "year": 2024,
    "link": "https://example.org",
    "with_results": {"Table I": "rounds", "Figure 2": "curves"},
    "without_results": {"Table II": "notation"},
}
HALF = {"a": [50, 60, 55], "b": [110, 115, 120]}  # of rounds, for three seeds


def write_claim(folder, name="table_1", values=None, measure=ROUNDS, **changes):
    """A claim and, if values are given, what was seen: by method, or by case and method."""
    content = {key: value for key, value in {**CLAIM, **changes}.items() if value is not None}
    path = folder / f"{name}.toml"
    if values is not None:
        cases = values if isinstance(next(iter(values.values())), dict) else {"": values}
        lines = [
            (case, method, measure, seed, value)
            for case, methods in cases.items()
            for method, seeds in methods.items()
            for seed, value in enumerate(seeds)
        ]
        if "seeds" in content and "seeds" not in changes:
            content["seeds"] = 1 + max(seed for *_, seed, _ in lines)
        write_measured(path.with_suffix(".csv"), lines)
    path.write_text(tomli_w.dumps(content))
    return path


def write_paper(folder, name="one", **changes):
    """The folder of a paper with two claims, one of them not run."""
    own = folder / name
    own.mkdir(parents=True)
    (own / "paper.toml").write_text(tomli_w.dumps({**PAPER, **changes}))
    write_claim(own, values=HALF)
    write_claim(own, "figure_2", item="Figure 2", needs="a GPU", **NOT_RUN)
    (own / "full_setting.toml").write_text("rounds = 10000\n")
    return own
