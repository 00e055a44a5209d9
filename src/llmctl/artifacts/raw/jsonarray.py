"""Turn one JSON array, or JSON objects that span lines, into JSON lines, byte for byte in place.

Every byte keeps its offset: a comma between elements becomes a newline, a newline inside an element a blank. So the
reader of lines, its limits and its treatment of one bad element serve here too, and memory stays bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# A string that is whole in the chunk is passed over at once. The pattern is unrolled: no text makes it slow.
_OUTSIDE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{},\n]', re.DOTALL)
_INSIDE = re.compile(rb'["\\]')


def lines_of_array(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield chunks of the same sizes in which every top-level element stands on a line of its own."""
    layout = _Layout()
    for chunk in chunks:
        yield layout.convert(chunk)


class _Layout:
    def __init__(self) -> None:
        self.depth = 0
        self.base = 0  # depth of the elements: 1 inside an array
        self.in_string = False
        self.escaped = False

    def convert(self, chunk: bytes) -> bytes:
        out = bytearray(chunk)
        position = 0
        while position < len(chunk):
            if self.escaped:
                self.escaped = False
                position += 1
                continue
            match = (_INSIDE if self.in_string else _OUTSIDE).search(chunk, position)
            if match is None:
                break
            position = match.end()
            found = match[0]
            if len(found) > 1:
                continue
            if found == b'"':
                self.in_string = not self.in_string
            elif self.in_string:
                self.escaped = True
            else:
                self._structure(found, match.start(), out)
        return bytes(out)

    def _structure(self, found: bytes, place: int, out: bytearray) -> None:
        if found == b"\n":
            if self.depth > 0:
                out[place] = 0x20
        elif found == b",":
            if self.depth == self.base == 1:
                out[place] = 0x0A
        elif found in b"[{":
            if self.depth == 0 and found == b"[":
                self.base = 1
                out[place] = 0x20
            self.depth += 1
        elif self.depth > 0:
            self.depth -= 1
            if self.depth == 0 and self.base == 1:
                out[place] = 0x20
                self.base = 0
