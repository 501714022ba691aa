"""What stands on the pages: links, names, headings and blocks. Nothing is run here."""

import ast
import itertools
import re
import subprocess

import pytest
from helpers import FENCED, PAGES, ROOT, page_at, programs
from page_helpers import COMMANDS, blocks

INCLUDED = ("CONTRIBUTING.md", "benchmarks/README.md", "experiments/papers/README.md")
OF_SITE = [page for page in PAGES if page.startswith("docs/") or page in INCLUDED]
LANGUAGES = {"sh", "python", "text", "yaml", "bibtex"}  # yaml is for FedML
PACKAGE = ROOT / "fedjax_algos"

# where the programs of a page are run
TESTS = {
    "CONTRIBUTING.md": "test_readme",
    "README.md": "test_readme",
    "docs/command_line.md": "cli/test_methods",
    "docs/extend.md": "test_own_algorithms_page",
    "docs/own_algorithms.md": "test_own_algorithms_page",
    "docs/own_loops.md": "test_own_algorithms_page",
    "docs/own_wrappers.md": "test_own_algorithms_page",
    "docs/recipes.md": "test_recipes",
}
OTHERS = "choosing_clients compression data_and_models faq index large_populations privacy"
OTHERS = f"{OTHERS} results transformations".split()
PEERS = [page for page in PAGES if page.startswith("docs/coming_from/") and "index" not in page]
TESTS |= dict.fromkeys([*(f"docs/{name}.md" for name in OTHERS), *PEERS], "test_programs_on_pages")


def anchors(page):
    """Names of the headings of a page and of those in it, as GitHub and MyST make them."""
    included = r"^```\{include\} (\S+)\n```$"
    text = re.sub(
        included, lambda m: (page.parent / m[1]).read_text(), page.read_text(), flags=re.M
    )
    found = []
    for title in re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title.lower())  # of a link its text
        name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        before = sum(re.fullmatch(rf"{name}(-\d+)?", other) is not None for other in found)
        found.append(f"{name}-{before}" if before else name)
    return {*found, *re.findall(r"^\((\S+)\)=$", text, re.MULTILINE)}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_and_headings(name):
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text())):
        target, _, anchor = link.partition("#")
        if "://" not in link:
            found = page_at((page.parent / target).resolve() if target else page)
            assert found.exists(), link
            assert not anchor or anchor in anchors(found), link


@pytest.mark.parametrize("name", [name for name in PAGES if name != "CHANGELOG.md"])
def test_files_that_a_page_names_exist(name):
    page = ROOT / name
    named = re.findall(r"`([a-z_]+/[a-z_/]*[a-z_]+\.(?:py|toml|md))`", page.read_text())
    bases = [ROOT, PACKAGE, PACKAGE / "algorithms", page.parent]
    assert [name for name in named if not any((base / name).exists() for base in bases)] == []


@pytest.mark.parametrize("page", OF_SITE)
def test_code_is_as_wide_as_the_column_and_headings_are_in_order(page):
    """100 characters fit at 1280 px (docs/_static/site.css); commands are broken before that.

    There is one title, unless the page only includes another one, and no level is left out.
    """
    for language, text in blocks(page):
        lines = text.splitlines()
        if re.search("python|yaml|text", language):
            assert max(map(len, lines), default=0) <= 100
        long = [line for line in lines if language == "sh" and len(line) > 88]
        assert [line for line in long if len(line.removesuffix(" \\").split()) > 2] == []
    outside = FENCED.sub("", (ROOT / page).read_text())
    levels = [len(marks) for marks in re.findall(r"^(#+) ", outside, re.MULTILINE)]
    assert levels.count(1) == bool(levels)
    assert all(after <= before + 1 for before, after in itertools.pairwise([0, *levels]))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language(page):
    """A command or a program without one would not be found; a block {...} is read by Sphinx."""
    assert {name for name, _ in blocks(page) if name[:1] != "{"} <= LANGUAGES
    assert blocks(page, "python") == programs(page)  # none is hidden by its indentation
    for text in programs(page):
        ast.parse(text)


@pytest.mark.parametrize("page", COMMANDS)
def test_a_shell_reads_the_commands(page):
    subprocess.run(["bash", "-n"], input="".join(blocks(page, "sh")).encode(), check=True)


def test_every_program_on_a_page_is_run_by_a_test():
    pages = [page for page in PAGES if "/" not in page or page.startswith("docs/")]
    assert {page for page in pages if programs(page)} == TESTS.keys()
    for page, test in TESTS.items():
        assert page in PEERS or page in (ROOT / f"tests/{test}.py").read_text()


@pytest.mark.parametrize("page", PEERS)
def test_the_code_for_the_other_library_is_marked_and_is_python(page):
    texts = [text for language, text in blocks(page) if language.startswith("{code-block} python")]
    assert texts
    for text in texts:
        marked, code = text.split("\n\n", 1)
        assert marked == ":class: peer"
        ast.parse(code)
        assert "fedjax_algos" not in code


def test_the_page_of_the_code_names_what_exists():
    """Every file and folder, and every function and class in one of the package's files."""
    named = re.findall(r"`([\w/.]+)`", (ROOT / "docs/the_code_in_ten_minutes.md").read_text())
    paths = {name for name in named if "/" in name} - {"fedjax_algos/"}
    assert {path for path in paths if not (PACKAGE / path).exists()} == set()
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    words = {name.split(".")[-1] for name in named if "/" not in name} - {"csv"}
    assert words <= set(re.findall(r"(?:\b(?:def|class) |^    (?=\w+: ))(\w+)", text, re.M))
