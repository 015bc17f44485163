"""The site of the documents: it is whole, needs no network, and is not built with a broken link."""

from __future__ import annotations

import html
import inspect
import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

import flatwalk as fw
from tests.browser import chromium
from tests.test_docs import DOCS, DOCUMENTS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Puts into the title what a page loads, and what goes wrong while it does so.
_WATCH = """<script>
const wrong = [];
addEventListener("error", event => wrong.push(event.message || event.target.outerHTML), true);
addEventListener("load", () => setTimeout(() => { document.title = JSON.stringify({
  wrong, loaded: performance.getEntriesByType("resource").map(entry => entry.name),
  over: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  equations: document.querySelectorAll("math").length,
  high: Math.max(...[...document.querySelectorAll("math mfrac")].map(e => e.getBoundingClientRect().height)),
}); }));
</script>"""


class _References(HTMLParser):
    """What a page refers to, by the element's name, and what can be referred to in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.found.append((tag, value))
            if name == "id" and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    script = ROOT / "scripts" / "site.sh"
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run([script, folder], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}/index.html\n"
    assert not (folder.parent / "jupyter_execute").exists(), "Sphinx's by-products lie next to its output"
    return folder


@pytest.mark.slow
def test_every_document_is_a_page_and_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {page: _References(page) for page in site.rglob("*.html") if "_downloads" not in page.parts}
    for document in (*DOCUMENTS, *DOCS.rglob("*.ipynb")):
        assert site / document.relative_to(ROOT).with_suffix(".html") in pages
    broken = []
    for page, references in pages.items():
        for tag, link in references.found:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                # A reader may follow a link to the network; a page loads nothing from there.
                if tag != "a":
                    broken.append((page.name, link))
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append((page.name, link))
    assert broken == []


@pytest.mark.slow
def test_options_are_written_as_they_are_typed(site: Path) -> None:
    assert "after those of --schemes" in (site / "docs" / "commands.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_python_reference_has_every_public_name_and_parameter(site: Path) -> None:
    page = (site / "docs" / "api.html").read_text(encoding="utf-8")
    for name in fw.__all__:
        assert f'id="flatwalk.api.{name}"' in page or f'id="flatwalk.errors.{name}"' in page, name
    for parameter in inspect.signature(fw.compare).parameters:
        assert f"<strong>{parameter}</strong>" in page, parameter


@pytest.mark.slow
def test_the_site_can_be_searched_without_a_server(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")
    names = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["docnames"]
    assert {"docs/model", "docs/guide", "README"} <= set(names)
    assert re.search(r'<script src="searchindex.js"', (site / "search.html").read_text(encoding="utf-8"))


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The site's address: browsers do not say what a page loads of a file system."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_words: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("width", [500, 1200])
def test_a_page_with_equations_loads_nothing_from_elsewhere_and_has_no_errors(
    site: Path, served: str, tmp_path: Path, width: int
) -> None:
    page = (site / "docs" / "model.html").read_text(encoding="utf-8")
    (site / "watched.html").write_text(
        page.replace("<head>", f"<head><base href='docs/'>{_WATCH}", 1), encoding="utf-8"
    )
    window = [f"--window-size={width},1000", "--virtual-time-budget=5000"]
    dom = chromium(tmp_path, *window, "--dump-dom", f"{served}watched.html")
    title = re.search(r"<title>(\{.*?\})</title>", dom)
    assert title
    found = json.loads(html.unescape(title[1]))
    assert found["wrong"] == []
    assert len(found["loaded"]) > 3
    assert [name for name in found["loaded"] if not name.startswith(served)] == []
    assert found["over"] == 0
    assert found["equations"] > 20
    assert found["high"] > 25, "fractions are drawn as fractions"


def test_a_broken_link_and_a_missing_heading_end_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text(
        "# List\n## Part: one\n[a](a.md) [b](b.md) [c](a.md#nothing)\n[d](a.md#two-words)\n"
    )
    (tmp_path / "docs" / "a.md").write_text("# Page\n## Two words\n[](#here)\n")
    (tmp_path / "docs" / "stray.md").write_text("# Page\n")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-c", str(ROOT / "docs")]
    done = subprocess.run([*command, tmp_path, tmp_path / "out"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    for words in ("b.md", "nothing", "here", "stray.md: WARNING: document isn't included in any toctree"):
        assert words in done.stderr, done.stderr
    assert "two-words" not in done.stderr
