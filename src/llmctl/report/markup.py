"""Escape text for HTML. Everything that is shown passes through here: documents are not trusted."""

from __future__ import annotations

import html
import re

# What XML does not allow at all, even escaped; lone surrogates cannot be written as UTF-8.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def escape(text: object) -> str:
    """Return text that is safe between tags and in quoted attributes."""
    return html.escape(_FORBIDDEN.sub("\ufffd", str(text)), quote=True)


def number(value: float | int | None, digits: int = 4) -> str:
    """Return a number for people: thousands separated, a dash for none."""
    if value is None or value != value:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (abs(value) >= 10000 and float(value).is_integer()):
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def size(num_bytes: float | None) -> str:
    """Return a size in decimal units: ``12.3 MB``."""
    if num_bytes is None:
        return "–"
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= limit:
            return f"{num_bytes / limit:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def duration(seconds: float | None) -> str:
    """Return a time span: ``3.2 s``, ``4 min 10 s``, ``2 h 5 min``."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
