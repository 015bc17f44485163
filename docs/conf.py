"""Settings of Sphinx, which makes a site of the documents: `scripts/site.sh`, docs/adr/0015.

The list of documents is docs/README.md, for readers of the repository and of the site alike. Nothing in the
site is loaded from a network: equations are MathML, which browsers draw themselves, in a font of the site's.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import latex2mathml.converter
from docutils import nodes

from flatwalk import engine

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "flatwalk"
release = version = engine.version()
html_title = f"flatwalk {release}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# Documents lie in docs/, at the repository's root and next to the series and the model. What else there is of
# Markdown (build output, environments) is not looked at.
root_doc = "docs/README"
include_patterns = [
    "*.md",
    "docs/**.md",
    "docs/notebooks/*.ipynb",
    "qemu/README.md",
    "linux/README.md",
    "linux/model/README.md",
]
exclude_patterns = [
    path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in {"docs", "linux", "qemu"}
]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 6
# Notebooks are kept with what they printed; tests/test_notebooks.py runs them and compares.
nb_execution_mode = "off"
# A console's lines are not a language of Pygments'.
highlight_language = "text"
# -- is the beginning of an option.
smartquotes = False

html_theme = "furo"
# Without a font that knows of equations, browsers set indices as high as what they belong to.
html_static_path = ["site.css", str(resources.files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf")]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

# Docstrings are written in Markdown's manner: what stands in single backticks is code.
default_role = "code"
autodoc_member_order = "bysource"
add_module_names = False
autodoc_typehints_format = "short"


def _listed(_app: Sphinx, name: str, content: list[str]) -> None:
    """Makes the navigation from docs/README.md: a heading is a part, a link to a document its entry."""
    if name != root_doc:
        return
    for section in content[0].split("\n## ")[1:]:
        title = section.partition("\n")[0].partition(":")[0]
        links = re.findall(r"\]\(([^()\s]+)\.(?:md|ipynb)\)", section)
        entries = "\n".join(link if link.startswith("../") else f"/docs/{link}" for link in links)
        content[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n"


def _inline(translator: Any, node: nodes.math) -> None:  # noqa: ANN401 - Sphinx has no type for it
    translator.body.append(latex2mathml.converter.convert(node.astext()))
    raise nodes.SkipNode


def _display(translator: Any, node: nodes.math_block) -> None:  # noqa: ANN401
    translator.body.append(latex2mathml.converter.convert(node.astext(), display="block"))
    raise nodes.SkipNode


def _front_page(app: Sphinx, error: Exception | None) -> None:
    """Makes the folder of the site open as a site does."""
    if error is None and app.builder.format == "html":
        page = f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={root_doc}.html">'
        (Path(app.outdir) / "index.html").write_text(f"{page}<title>{project}</title>\n", encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _listed)
    app.connect("build-finished", _front_page)
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_display, None))
