"""Replace what was found in a text by placeholders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmctl.filtering.pii.detect import Found


def masked(text: Any, found: Sequence[Found], consistent: bool = False) -> bytes:
    """Return a text with each entity replaced by ``<TYPE>``.

    Args:
        text: UTF-8 bytes.
        found: what is in it, by position, without overlaps.
        consistent: number the placeholders, ``<TYPE_1>``, ``<TYPE_2>``: equal values of one text (but for case and
            separators) have the same number, in the order in which they first appear.
    """
    pieces: list[bytes] = []
    numbers: dict[str, dict[str, int]] = {}
    position = 0
    for entity in found:
        placeholder = entity.name.upper()
        if consistent:
            value = bytes(text[entity.start : entity.end]).decode("utf-8", "replace")
            seen = numbers.setdefault(entity.name, {})
            number = seen.setdefault("".join(filter(str.isalnum, value)).casefold(), len(seen) + 1)
            placeholder = f"{placeholder}_{number}"
        pieces += [bytes(text[position : entity.start]), f"<{placeholder}>".encode()]
        position = entity.end
    pieces.append(bytes(text[position:]))
    return b"".join(pieces)
