"""Cut a short sample out of every document, ready for a language identifier: one line, no shouting.

A document that is longer than the sample gives three pieces of equal length: its beginning, middle and end, so that
a menu or a licence at the top does not speak for the rest.
"""

from __future__ import annotations

import numpy as np

from llmctl.text import unicode
from llmctl.text.buffers import frozen
from llmctl.text.compile import inline_kernel, kernel
from llmctl.text.unicode import ALPHA, UPPER, decode

PIECES = 3
# From this share of capitals on, a text is set in capitals as a whole; identifiers take that for another language.
SHOUTING_TENTHS = 8


@inline_kernel
def _next_start(data, position, end):
    """Return the first position from `position` on at which a character begins."""
    while position < end and data[position] & 0xC0 == 0x80:
        position += 1
    return position


@kernel
def _cut(data, offsets, classes, lower, max_bytes, out, out_offsets, letters):
    written = np.int64(0)
    out_offsets[0] = 0
    for document in range(offsets.size - 1):
        start, end = offsets[document], offsets[document + 1]
        length = end - start
        pieces = 1 if length <= max_bytes else PIECES
        size = length if pieces == 1 else max_bytes // PIECES
        first = written
        total = upper = 0
        for piece in range(pieces):
            begin = start
            if pieces > 1:
                begin = _next_start(data, start + piece * (length - size) // (pieces - 1), end)
            stop = _next_start(data, min(begin + size, end), end)
            if piece > 0:
                out[written] = 32
                written += 1
            position = begin
            while position < stop:
                point, width = decode(data, position)
                flags = classes[point]
                if flags & ALPHA:
                    total += 1
                    upper += 1 if flags & UPPER else 0
                if width == 1 and point < 32:
                    out[written] = 32
                else:
                    for index in range(width):
                        out[written + index] = data[position + index]
                written += width
                position += width
        letters[document] = total
        if SHOUTING_TENTHS * total <= 10 * upper:
            position = first
            while position < written:
                point, width = decode(out, position)
                lowered = lower[point]
                # Only where the small letter takes as many bytes, so that the sample stays in place.
                if width == 1 and lowered < 0x80:
                    out[position] = lowered
                elif width == 2 and 0x80 <= lowered < 0x800:
                    out[position] = 0xC0 | lowered >> 6
                    out[position + 1] = 0x80 | (lowered & 0x3F)
                position += width
        out_offsets[document + 1] = written


def cut_samples(data: np.ndarray, offsets: np.ndarray, max_bytes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a sample of every document of about `max_bytes` bytes at most.

    Args:
        data, offsets: from `text_buffers`.
        max_bytes: documents up to this size are taken whole.

    Returns:
        (bytes, offsets, letters): the samples as UTF-8 with int64 offsets, and how many letters each has (int64).
        Control characters are spaces; a sample set in capitals is in small letters.
    """
    documents = len(offsets) - 1
    room = int(np.minimum(np.diff(offsets), max_bytes + 4 * PIECES).sum()) + PIECES * documents
    out = np.empty(max(room, 1), np.uint8)
    out_offsets = np.empty(documents + 1, np.int64)
    letters = np.empty(documents, np.int64)
    _cut(
        frozen(data), frozen(offsets), unicode.classes(), unicode.lower(), max_bytes, out, out_offsets, letters,
    )  # fmt: skip
    return out[: out_offsets[-1]], out_offsets, letters
