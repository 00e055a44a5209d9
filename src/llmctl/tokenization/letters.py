"""GPT-2's printable letter for each byte, in which byte-level vocabularies are written."""

from __future__ import annotations

from functools import cache


@cache
def byte_letters() -> dict[int, str]:
    """Return the letter of each byte: itself where it is printable, otherwise one from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {byte: chr(byte) for byte in visible}
    hidden = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + number) for number, byte in enumerate(hidden)})
    return letters


def to_letters(text: str | bytes) -> str:
    """Write a text, or bytes, in these letters."""
    letters = byte_letters()
    return "".join(letters[byte] for byte in (text.encode() if isinstance(text, str) else text))
