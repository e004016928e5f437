"""The pages a newcomer opens first: their links lead somewhere, the glossary is in order, and the citations agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/README.md",
    "docs/bibliography.md",
    "docs/extending.md",
    "docs/glossary.md",
    "docs/guarantees.md",
    "docs/limits.md",
    "docs/paper.md",
    "docs/tutorial.md",
    "examples/README.md",
    "examples/extending/README.md",
)


def anchors(path: Path) -> set[str]:
    """Return what a link can point at in a page: named anchors, and headings as GitHub turns them into anchors."""
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([\w-]+)">', text))


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    page = ROOT / name
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    inside = [link for link in links if not link.startswith("https://")]
    assert inside
    for link in inside:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_glossary_is_alphabetical_and_each_term_has_a_page() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.*) \|$", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.M)
    terms = [term.strip("`").lower().replace("_", " ") for term, _ in rows]
    assert len(terms) > 70 and terms == sorted(terms)
    for term, meaning in rows:
        assert "](" in meaning, term


def test_every_paper_that_the_code_names_is_in_the_bibliography() -> None:
    """A citation is an author with a year in a docstring or on a page."""
    page = (ROOT / "docs/bibliography.md").read_text(encoding="utf-8")
    folders = [path.parent for path in ROOT.rglob("py.typed") if ".venv" not in path.parts]
    assert len(folders) > 4
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")]
    cited = {
        name for text in texts for name in re.findall(r"\b([A-ZÚ][\w]+) \(?(?:[A-Z]+ )?(?:19|20)\d\d\b[,);:]", text)
    }
    cited -= {"Chromium", "Proposition", "EDBT", "FORC", "SODA", "CCS"}
    assert {"Steinke", "Dietzfelbinger", "Vadhan"} <= cited
    assert {name for name in cited if name not in page} == set()


def test_the_citation_file_names_the_papers_of_the_bibliography() -> None:
    page = (ROOT / "docs/bibliography.md").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    numbers = set(re.findall(r"arxiv\.org/abs/([\d.]+)|doi\.org/([^)\s]+)\)", page))
    for arxiv, doi in numbers:
        assert (arxiv or doi) in citation, arxiv or doi
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None and f"version: {version[1]}\n" in citation
