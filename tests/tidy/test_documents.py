"""Documents name things that exist, and nothing points outside the project."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "spark_bookkeeper"
PROTOCOL = PACKAGE / "protocol" / "PROTOCOL.md"
SLOT_LOG = PACKAGE / "bookie" / "SLOT-LOG.md"

PLACES = ("spark_bookkeeper", "jobs", "conf", "tests", ".ci")
MADE = {"__pycache__", "target", "node_modules"}
TEXT = {
    "",
    ".cfg",
    ".ini",
    ".java",
    ".json",
    ".md",
    ".properties",
    ".py",
    ".service",
    ".sh",
    ".toml",
    ".txt",
    ".xml",
    ".yml",
}

FOREIGN = {
    "a path of one machine": r"(?<![\w/.}$~])/(?:work|opt|root|home)/\w",
    "a path above the project": r"(?<![\w.])(?:\.\./)+(?:shared|seeds|reference|design|peers)\b",
    "a document named by a hash": r"\b\d{3}_[0-9a-f]{16}\b",
}

INVARIANT = re.compile(r"[a-z]+(?:-[a-z]+){2,}")


def documents() -> Iterator[Path]:
    at_top = (path for path in ROOT.iterdir() if path.is_file() and path.suffix in TEXT)
    yield from (path for path in at_top if path.name != ".git")  # a file in a second work tree
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*")):
            if path.is_file() and path.suffix in TEXT and not MADE & set(path.parts):
                yield path


MAYBE_FOREIGN = re.compile(r"/(?:work|opt|root|home)/|\.\./|_[0-9a-f]{16}")
"""A part of each, for which a text is searched much sooner."""


def test_nothing_points_outside_the_project() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {what}: {line.strip()[:100]}"
        for path in documents()
        if path.name != "test_documents.py" and path.name != "LICENSE"
        if MAYBE_FOREIGN.search(text := path.read_text(encoding="utf-8", errors="replace"))
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FOREIGN.items()
        if re.search(pattern, line)
    ]

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "path",
    [path for path in documents() if path.suffix == ".md"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_link_to_a_file_leads_to_a_file(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    local = [
        target for target in targets if "://" not in target and not target.startswith("mailto:")
    ]

    assert [target for target in local if not (path.parent / target).exists()] == []


def named_in_protocol() -> list[str]:
    if not PROTOCOL.exists():
        pytest.skip("protocol/PROTOCOL.md is not written yet")
    return re.findall(r"`([^`\n]+)`", PROTOCOL.read_text(encoding="utf-8"))


def test_files_that_the_protocol_page_names_exist() -> None:
    files = [name for name in named_in_protocol() if re.fullmatch(r"[\w/.]+\.(?:py|md|txt)", name)]
    bases = (ROOT, PACKAGE, PACKAGE / "protocol", ROOT / "tests")

    assert [name for name in files if not any((base / name).exists() for base in bases)] == []


def test_tests_that_the_protocol_page_names_exist() -> None:
    tests = {
        name.split("::")[-1] for name in named_in_protocol() if re.search(r"\btest_\w+$", name)
    }
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
    }

    assert sorted(tests - defined) == []


def sources() -> Iterator[str]:
    for path in PACKAGE.rglob("*.py"):
        yield path.read_text(encoding="utf-8")


def nodes(pattern: str) -> Iterator[ast.AST]:
    """The syntax of the package, but for files in which a pattern is not found: that is quick."""
    for text in sources():
        if re.search(pattern, text, re.M):
            yield from ast.walk(ast.parse(text))


OF_BOOKKEEPER = {
    "LedgerMetadataBuilder",
    "LedgerUnderreplicationManager.disableLedgerReplication",
}
"""Classes of Apache BookKeeper that the page gives as sources."""


def test_code_that_the_protocol_page_names_exists() -> None:
    """Classes, what is of a class or module, and names with an underscore in front."""
    form = re.compile(r"[A-Z][a-z]\w*|_\w+|\w+\.\w+")
    files = re.compile(r".*\.(?:py|md|txt)")
    named = {name for name in named_in_protocol() if form.fullmatch(name)}
    code = {name for name in named if not files.fullmatch(name)} - OF_BOOKKEEPER
    assert len(code) > 50
    defined = {path.stem for path in PACKAGE.rglob("*.py")}
    defined |= set(re.findall(r"^ *(?:class|def) (\w+)", "\n".join(sources()), re.M))
    others = {part for name in code for part in name.split(".")} - defined
    defined |= {
        node.target.id
        for node in nodes(rf"^ *(?:{'|'.join(others)}): ")
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert sorted(name for name in code if not defined.issuperset(name.split("."))) == []


def test_invariants_that_the_code_asserts_are_on_the_protocol_page() -> None:
    listed = set(named_in_protocol())
    asserted = {
        node.msg.value
        for node in nodes(r'"[a-z]+(?:-[a-z]+){2,}"')
        if isinstance(node, ast.Assert)
        and isinstance(node.msg, ast.Constant)
        and isinstance(node.msg.value, str)
        and INVARIANT.fullmatch(node.msg.value)
    }

    assert sorted(asserted - listed) == []


def citations() -> Iterator[tuple[str, str]]:
    """Where the slot log's rules are cited, and what stands behind its name up to the full stop."""
    for path in documents():
        if path.suffix in {".py", ".md"} and path not in {SLOT_LOG, Path(__file__)}:
            text = path.read_text(encoding="utf-8")
            if "SLOT-LOG" in text:
                for cited in re.findall(r"SLOT-LOG(?!\.md)([^.;`]*)", " ".join(text.split())):
                    yield str(path.relative_to(ROOT)), cited


def test_rules_of_the_slot_log_that_are_cited_are_in_its_document() -> None:
    rules = set(re.findall(r"\*\*(R\d+b?)\*\*", SLOT_LOG.read_text(encoding="utf-8")))
    cited = {(path, rule) for path, words in citations() for rule in re.findall(r"R\d+b?", words)}

    assert rules >= {f"R{number}" for number in range(1, 19)}
    assert len(cited) > 30
    assert sorted((path, rule) for path, rule in cited if rule not in rules) == []


def test_sections_of_the_slot_log_that_are_cited_are_in_its_document() -> None:
    text = SLOT_LOG.read_text(encoding="utf-8")
    sections = set(re.findall(r"^## (.+)$", text, re.M))
    sections |= {name.rstrip(".") for name in re.findall(r"^\* \*\*([^*]+)\*\*", text, re.M)}
    cited = {
        (path, name) for path, words in citations() for name in re.findall(r'"([^"]+)"', words)
    }

    assert len(cited) > 5
    assert sorted((path, name) for path, name in cited if name not in sections) == []


def test_demands_of_the_slot_log_that_the_code_names_are_in_its_document() -> None:
    demand = re.compile(r"\[([a-z0-9]+(?:_[a-z0-9]+)+)\]")
    text = SLOT_LOG.read_text(encoding="utf-8").replace(", ", "][")
    named = {
        name
        for path in (PACKAGE / "bookie").glob("*.py")
        for literal in docstrings_and_comments(path)
        for name in demand.findall(literal)
    }

    assert len(named) > 5
    assert sorted(named - set(demand.findall(text))) == []


def docstrings_and_comments(path: Path) -> Iterator[str]:
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                yield token.string
