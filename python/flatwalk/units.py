"""Sizes, counts and percentages: read from a command line, written for a person."""

from __future__ import annotations

import math
import re

from flatwalk.errors import UsageError

_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: Sizes and counts are below this, as in the engine.
_LIMIT = 1 << 64
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}


def parse_size(text: str, where: str) -> int:
    """Reads a number of bytes: `1GiB`, `512MiB`, `8G` (always powers of 1024) or `4096`.

    Raises:
        UsageError: If `text` is not a size; `where` names the option.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is not None and (size := float(match[1]) * _BINARY[match[2].upper()]) >= _LIMIT:
        raise UsageError(f"size {text!r} is too large", where=where, remedy="give less than 16777216 TiB")
    if match is None:
        raise UsageError(
            f"size {text!r} not understood", where=where, remedy="for example 512GiB, 64MiB or 8G"
        )
    return int(size)


def parse_count(text: str, where: str) -> int:
    """Reads a count: `100M`, `1.5G`, `20k` (powers of 1000), `100_000` or `1e8`.

    Raises:
        UsageError: If `text` is not a count, which is a whole number; `where` names the option.
    """
    value = _count(text, where)
    if value >= _LIMIT:
        raise UsageError(
            f"count {text!r} is too large", where=where, remedy="give less than 18 E, as in 100G"
        )
    return value


def _count(text: str, where: str) -> int:
    plain = text.strip().replace("_", "")
    remedy = "for example 100M, 1.5G or 250000"
    form = r"(\d{1,99})(?:\.(\d{1,99}))?(?:\s*([KMGBT]?)|e(\d{1,2}))"
    match = re.fullmatch(form, plain, re.IGNORECASE | re.ASCII)
    if match is None:
        raise UsageError(f"count {text!r} not understood", where=where, remedy=remedy)
    whole, part, unit, exponent = match[1], match[2] or "", match[3] or "", match[4] or "0"
    factor: int = _DECIMAL[unit.upper()] * 10 ** int(exponent)
    # In whole numbers: 8.2 * 10**6 is less than 8200000.
    scale: int = 10 ** len(part)
    value, rest = divmod(int(whole + part) * factor, scale)
    if rest:
        raise UsageError(f"count {text!r} is not a whole number", where=where, remedy=remedy)
    return value


def parse_percent(text: str, where: str) -> float:
    """Reads `1%` or `0.5`, which are 0.01 and 0.005.

    Raises:
        UsageError: If it is not a percentage above 0 and below 100.
    """
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise UsageError(
            f"{text!r} is not a percentage above 0 and below 100", where=where, remedy="for example 1%"
        )
    return value


def ratio(above: float | None, below: float | None) -> float | None:
    """One figure over another; None where one is missing, or the lower one is 0."""
    return above / below if above is not None and below else None


def size(count: float) -> str:
    """Bytes for a person: `16.04 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value == int(value) else f"{value:.2f} {unit}"


def short_size(count: int) -> str:
    """Bytes as they stand in a workload's name: `1GiB`."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor}{unit}"
    return f"{count}B"


def count(value: float) -> str:
    """A count for a person: `100 M`, `1.25 G`, `950`."""
    rounded = float(f"{value:.3g}")
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(rounded) >= factor:
            digits = f"{rounded / factor:.3g}"
            return f"{digits if 'e' not in digits else f'{rounded / factor:,.0f}'} {unit}"
    return f"{value:.0f}"


def signed_percent(change: float) -> str:
    """A relative change for a person: 0.092 is `+9.2 %`."""
    if abs(change) < 0.0005:
        return "0.0 %"
    return f"{change:+.1%}".replace("%", " %").replace("-", "−")


def margin(value: float | None, low: float | None, high: float | None) -> str:
    """How far a figure's interval reaches, in its hundredths: 1.092 in 1.09 to 1.10 is `±0.8`."""
    if value is None or low is None or high is None:
        return "–"
    return f"±{100 * max(high - value, value - low):.1f}"


def percent(share: float) -> str:
    """A share for a person: 0.092 is `9.2 %`; small shares keep a significant digit."""
    if not share:
        return "0 %"
    if abs(share) < 0.001:
        return "under 0.1 %"
    return f"{share:.{percent_digits(share)}%}".replace("%", " %")


def percent_digits(share: float) -> int:
    """Digits behind the point of a share in per cent: none if it is, or would be rounded to, 10 % or more."""
    return 0 if abs(share) >= 0.0995 else 1


def several(number: int, noun: str) -> str:
    """A number of things: `1 run`, `1,200 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """A time for a person: `40 seconds`, `14 minutes`, `3.5 hours`."""
    if seconds < 100:
        return several(max(round(seconds), 1), "second")
    if seconds < 6000:
        return several(round(seconds / 60), "minute")
    hours = seconds / 3600
    return f"{hours:.3g} hours" if hours < 999.5 else f"{hours:,.0f} hours"
