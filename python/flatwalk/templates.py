"""Templates that become HTML pages: one file each, without network."""

from __future__ import annotations

from flatwalk import units


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
    return environment.get_template(template).render(**values)
