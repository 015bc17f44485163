"""Every document can be found from docs/README.md, and links lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
ENTRY_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]
PAGES = [ROOT / room / "README.md" for room in ("qemu", "linux", "linux/model")]
DOCUMENTS = [*ENTRY_PAGES, *PAGES, *sorted(DOCS.rglob("*.md"))]


def prose(path: Path) -> str:
    """A document without its code, where brackets are not links and # is not a heading."""
    text = re.sub(
        r"^ *(```|~~~).*?^ *\1", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()#]", "", code[0]), text)


def links(path: Path) -> list[str]:
    """Where a document's relative links and pictures lead."""
    targets = re.findall(r"\]\(([^()\s]+)\)", prose(path))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(path: Path) -> set[str]:
    """What a document's headings can be linked by, as GitHub makes it."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(path), flags=re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = sum(
            name == other or re.fullmatch(rf"{re.escape(name)}-\d+", other) is not None for other in found
        )
        found.add(f"{name}-{count}" if count else name)
    return found


def broken(path: Path) -> list[str]:
    """A document's links that lead nowhere."""
    wrong = []
    for link in links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert broken(document) == []


def test_every_document_is_linked_from_the_index() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links(INDEX)}
    documents = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    missing = [path for path in documents if path != INDEX and path.resolve() not in linked]
    assert missing == []


def test_documents_that_sources_name_exist() -> None:
    folders = ("engine", "host", "linux", "python", "qemu", "recorder", "scripts", "tests")
    suffixes = {".c", ".h", ".md", ".py", ".pyi", ".rs", ".sh", ".toml"}
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    texts = {path: path.read_text(encoding="utf-8") for path in sources if "target" not in path.parts}
    named = {
        (str(path.relative_to(ROOT)), name)
        for path, text in texts.items()
        for name in re.findall(r"\bdocs/[\w./-]+\.\w+", text)
    }
    assert len(named) > 20
    assert [(path, name) for path, name in sorted(named) if not (ROOT / name).exists()] == []


def test_sources_that_the_model_names_exist() -> None:
    text = (DOCS / "model.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./]+\.(?:rs|py|toml))`", text))
    paths = {
        f"/{path.relative_to(ROOT)}"
        for folder in ("engine", "python")
        for path in (ROOT / folder).rglob("*.*")
    }
    assert len(named) > 20
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in paths)] == []


def test_the_glossary_has_every_organisation() -> None:
    registry = ROOT / "engine" / "paging" / "src" / "organisations" / "mod.rs"
    organisations = re.findall(r"^mod (\w+);", registry.read_text(encoding="utf-8"), re.MULTILINE)
    (row,) = re.findall(
        r"^\| organisation \|.*$", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(re.findall(r"`(\w+)`", row)) == set(organisations)


#: As "Words" in CONTRIBUTING.md says. "There is no X" is the usual order, and "told apart" the usual phrase.
UNUSUAL = re.compile(
    r"\b(?:beside|mend(?:s|ed|ing)?|(?:tells?|told)(?! apart))\b"
    r"|(?<!there )\b(?:is|are) no (?!more\b|longer\b|less\b)",
    re.IGNORECASE,
)


def unusual(text: str) -> list[str]:
    """Words of a document that have a more usual one; what it quotes is not its own."""
    return UNUSUAL.findall(re.sub(r"\"[^\"\n]*\"|\s+", lambda part: " " if part[0].isspace() else "…", text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_usual_words(document: Path) -> None:
    assert unusual(prose(document)) == []


def test_unusual_words_are_seen() -> None:
    assert unusual('It is\nno file, and tells nothing beside; "is no" is told apart. There is\nno more.') == [
        "is no ",
        "tells",
        "beside",
    ]


def test_the_readme_leads_to_the_other_entry_pages() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links(ROOT / "README.md")}
    assert {INDEX, *ENTRY_PAGES[1:]} <= linked


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Two words, *one* dot.\n```\n# code\n```\n# Again\n# Again\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#two-words-one-dot) [c](other.md#again-1) `[d](none.md)` [e](#here)\n"
    )
    assert broken(page) == ["#here"]
    page.write_text(
        "# Here\n[a](none.md) [b](other.md#code) ![c](none.svg) [d](https://example.org) [e](#here)\n"
    )
    assert broken(page) == ["none.md", "other.md#code", "none.svg"]
