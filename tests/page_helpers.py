"""Blocks, programs and commands of pages."""

import itertools
import re
import shlex

from helpers import FENCED, PAGES, ROOT, programs


def blocks(page, language=None):
    """(language, text) of each fenced block of a page, or the texts in one language."""
    found = [(b[2].strip(), b[3]) for b in FENCED.finditer((ROOT / page).read_text())]
    return found if language is None else [text for name, text in found if name == language]


def executed(page, *numbers, names=None):
    """The names after the programs of a page, or those of the numbers, are run in their order."""
    texts, names = programs(page), {} if names is None else names
    for number in numbers or range(len(texts)):
        exec(texts[number], names)
    return names


def commands(page):
    """The words of each command in the blocks `sh` of a page, without the environment's folder."""
    for text in blocks(page, "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for is_and, group in itertools.groupby(words, lambda word: word == "&&"):
                program, *arguments = group
                if not is_and:
                    program = re.sub(r"^\.venv\S*/bin/", "", program)
                    yield [re.sub(r"^python3\.\d+$", "python3", program), *arguments]


COMMANDS = {page: list(commands(page)) for page in PAGES}
COMMANDS = {page: found for page, found in COMMANDS.items() if found}
