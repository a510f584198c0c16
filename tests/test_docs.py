"""What the documents say of the code is so: cases and their tests, links, settings."""

from __future__ import annotations

import ast
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
DOCUMENTS = [*PAGES, *sorted((ROOT / "docs").rglob("*.md"))]
AREAS = {
    "A": (1, 2, 4, 6, 7, 8, 11), "B": (1, 3, 5, 7, 8), "C": (1, 3, 4, 5, 7, 9), "D": (1, 2, 4, 6), "E": (1, 3, 4),
    "F": (1, 3, 4, 5, 6, 8, 9), "G": (1, 2, 4, 6, 7), "H": (1, 3, 4, 6, 7, 9, 10, 12), "I": (1, 2, 5, 6),
}  # fmt: skip
CASES = [f"{area}{number:02}" for area, numbers in AREAS.items() for number in numbers]
CLOSED_BY_THE_MAIN_JOB = {"B01", "H07", "I05"}
ROW = re.compile(r"^\| ([A-Z]\d\d) \|.*\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CASE = re.compile(r"\bcase ([A-Z]\d\d)\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")

Named = set[tuple[str, str, str]]  # case, file, test


def table() -> dict[str, tuple[str, str]]:
    """Case → (tests, open) of docs/cases.md."""
    rows = ROW.findall((ROOT / "docs" / "cases.md").read_text(encoding="utf-8"))
    found = {case: (tests, still) for case, tests, still in rows}
    assert len(found) == len(rows), "a case stands in the table twice"
    return found


def named_in_table() -> Named:
    return {(case, path, test) for case, (tests, _) in table().items() for path, test in TEST.findall(tests)}


@cache
def functions_of(path: Path) -> dict[str, range]:
    """Test functions of a file with their lines, decorators included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        node.name: range(min([node.lineno, *(d.lineno for d in node.decorator_list)]), (node.end_lineno or 0) + 1)
        for node in functions
        if node.name.startswith("test_")
    }


def named_in_tests() -> Named:
    """Every comment that begins with "case", with the test it stands in; "" for one outside of all."""
    found: Named = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        with path.open("rb") as source:
            comments = [token for token in tokenize.tokenize(source.readline) if token.type == tokenize.COMMENT]
        for comment in comments:
            if comment.string.startswith("# case "):
                owner = next((name for name, lines in functions_of(path).items() if comment.start[0] in lines), "")
                found |= {(case, str(path.relative_to(ROOT)), owner) for case in CASE.findall(comment.string)}
    return found


def test_every_case_is_in_the_table_and_no_other() -> None:
    assert sorted(table()) == CASES


def test_every_test_that_the_table_names_exists() -> None:
    missing = [(path, test) for _, path, test in named_in_table() if test not in functions_of(ROOT / path)]
    assert not missing


def test_the_table_and_the_comments_in_the_tests_say_the_same() -> None:
    assert named_in_table() == named_in_tests()


def test_a_case_is_closed_by_tests_or_waits_for_an_issue() -> None:
    for case, (tests, still) in table().items():
        closed = still.startswith("closed")
        assert closed or re.match(r"issue [3-8]\b", still), case
        assert TEST.search(tests) or not closed, case
        assert closed or case not in CLOSED_BY_THE_MAIN_JOB, case


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    targets = [link.partition("#")[0] for link in LINK.findall(text) if "://" not in link]
    targets += re.findall(r"`((?:docs|scripts|deploy|tests)/[\w./-]+)`", text)
    missing = sorted({target for target in targets if target and not _exists(document, target)})
    assert not missing


def _exists(document: Path, target: str) -> bool:
    return (document.parent / target).exists() or (ROOT / target).exists()


def test_every_environment_variable_is_documented_and_none_is_invented() -> None:
    source = (ROOT / "portal" / "settings.py").read_text(encoding="utf-8")
    read = set(re.findall(r"""env\.\w+\(\s*["'](\w+)["']""", source))
    table = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("## The node broker")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == read


def test_every_step_of_gpu_check_stands_among_what_is_unproven() -> None:
    source = (ROOT / "scripts" / "gpucheck" / "steps.py").read_text(encoding="utf-8")
    steps = re.findall(r'^        "(\w+)": ', source, re.MULTILINE)
    unproven = (ROOT / "docs" / "unproven.md").read_text(encoding="utf-8")
    assert len(steps) == 7
    assert not [step for step in steps if f"`{step}`" not in unproven]
    assert not set(re.findall(r"`(toolkit|uuids|\w+_\w+)`", unproven.partition("| what")[2])) - set(steps) - {"memlock"}
