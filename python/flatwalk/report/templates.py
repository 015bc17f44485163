"""Templates that become HTML pages: one file each, without network."""

from __future__ import annotations

import base64
import hashlib

from flatwalk import units
from flatwalk.report import glossary


def fill(room: str, template: str, **values: object) -> str:
    """A template of the package `flatwalk.ROOM` as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("flatwalk", room),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = units.size
    environment.filters["count"] = units.count
    environment.filters["sha256"] = _sha256
    return environment.get_template(template).render(linked=glossary.Links(), **values)


def _sha256(text: str) -> str:
    """The hash by which a page's policy permits what stands in a script or style element."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
