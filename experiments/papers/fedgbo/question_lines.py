"""Makes a sparse task of text: whether a line of Shakespeare's plays is a question.

COMMAND   none: `claims.py run` calls it before a claim with `prepare = "question_lines.py"`
EXPECTED  results/papers/fedgbo/question_lines.npz and its sizes
TIME      ten seconds

A stand-in for Sent140. A client is a role with at least ten examples, half of them lines that end
with a question mark, and half other lines drawn at random. An example is the counts of the 2,000
most frequent words of the training lines, divided by their sum; a fifth of each role's lines is
for the test. Punctuation is no part of the words. Lines without any of the words are left out.
"""

import collections
import gzip
import json
import re
from pathlib import Path

import numpy as np

SOURCE = Path("data/shakespeare_roles.json.gz")
TARGET = Path("results/papers/fedgbo/question_lines.npz")
WORDS, LEAST, TEST = 2000, 10, 0.2


def chosen_lines() -> list[list[tuple[list[str], bool]]]:
    """For each role its lines in a random order, as words and whether it is a question."""
    random, roles = np.random.default_rng(0), []
    with gzip.open(SOURCE, "rt") as file:
        texts = json.load(file)
    for text in texts.values():
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        questions = [line for line in lines if line.endswith("?")]
        others = [line for line in lines if not line.endswith("?")]
        number = min(len(questions), len(others))
        if 2 * number >= LEAST:
            kept = [
                line for group in (questions, others) for line in random.permutation(group)[:number]
            ]
            kept = [str(line) for line in random.permutation(kept)]
            roles.append([(re.findall(r"[a-z']+", s.lower()), s.endswith("?")) for s in kept])
    return roles


def make() -> None:
    """Writes the file."""
    parts: dict[str, list] = {"train": [], "test": []}
    for user, lines in enumerate(chosen_lines()):
        cut = round(TEST * len(lines))
        parts["test"] += [(user, *line) for line in lines[:cut]]
        parts["train"] += [(user, *line) for line in lines[cut:]]
    counts = collections.Counter(word for _, words, _ in parts["train"] for word in words)
    column = {word: number for number, (word, _) in enumerate(counts.most_common(WORDS))}
    arrays = {}
    for name, lines in parts.items():
        known = [(u, [column[w] for w in words if w in column], q) for u, words, q in lines]
        known = [line for line in known if line[1]]
        x = np.zeros((len(known), WORDS), np.float32)
        for row, (_, columns, _) in zip(x, known, strict=True):
            np.add.at(row, columns, 1 / len(columns))
        arrays |= {f"x_{name}": x, f"y_{name}": np.array([q for *_, q in known], np.int32)}
        arrays[f"user_{name}"] = np.array([u for u, *_ in known], np.int32)
        print(f"{name}: {len(known)} lines of {len(set(arrays[f'user_{name}']))} roles")
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(TARGET, **arrays)
