"""Cut a stream of any format into pieces of whole records: the one place that the planner and the workers share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.artifacts.raw.jsonarray import lines_of_array
from llmctl.artifacts.raw.pieces import LineCutter, Piece
from llmctl.artifacts.raw.warcrecords import WarcCutter

WHOLE_FILE_FORMATS = ("text", "markdown", "html")


def cut_stream(
    chunks: Iterable[bytes], form: str, path: str, options: ReadOptions, *, piece_bytes: int, start: int = 0
) -> Iterator[Piece]:
    """Cut a stream; for CSV the pieces hold whole lines, which `csvrows` makes rows of.

    Args:
        chunks: the decompressed file, or its part from `start` on.
        form: as in `blocks.Segment.format`.
        path: the file's printable path.
        piece_bytes: how much to gather for a piece.
        start: offset of the stream in the file; lines are numbered only from the beginning of a file.
    """
    if form == "warc":
        cutter = WarcCutter(path, piece_bytes=piece_bytes, max_record_bytes=options.max_record_bytes)
        return cutter.cut(chunks)
    lines = LineCutter(
        path,
        piece_bytes=piece_bytes,
        max_record_bytes=options.max_record_bytes,
        offset=start,
        # The lines that an array is turned into are not the file's.
        line=1 if start == 0 and form != "json" else None,
    )
    return lines.cut(lines_of_array(chunks) if form == "json" else chunks)
