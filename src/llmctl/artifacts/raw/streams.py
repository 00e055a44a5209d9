"""Read compressed files as a stream of chunks: bounded in memory, and everything before a fault is delivered.

Chunks have the size that was asked for (but the last), so what is cut from them does not depend on the
decompressor's own buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
}
CHUNK_BYTES = 1 << 20
INPUT_BYTES = 1 << 17  # what a decompressor is fed at a time
_SALVAGE_STEPS = (256, 1)
# `zstd --long=31` is in use for large corpora; the default limit of the library refuses such files.
_MAX_WINDOW_BYTES = 1 << 31
_SKIPPABLE_MAGIC = 0x184D2A50
_ZSTD_MAGIC = 0xFD2FB528


class StreamFault(Exception):
    """The rest of a stream cannot be read; the message is an error of an `InvalidRecord`."""


def compression_of(head: bytes) -> str:
    """Return the compression that a file's first bytes tell, or an empty string."""
    for magic, name in COMPRESSIONS.items():
        if head.startswith(magic):
            return name
    if len(head) >= 4 and int.from_bytes(head[:4], "little") & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
        return "zstd"
    return ""


def os_fault(failure: OSError) -> str:
    """Return the error of a file that the system does not let us read."""
    return f"unreadable file: {failure.strerror or failure}"


class ChunkReader:
    """Iterate over the decompressed chunks of a file.

    Attributes:
        position: bytes of the file on disk that have been read so far.

    Raises (while iterating):
        StreamFault: the file is truncated, broken or unreadable; all chunks before the fault have been given.
    """

    def __init__(self, path: Path, compression: str = "", chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path, self.compression, self.chunk_bytes = path, compression, chunk_bytes
        self.position = 0

    def __iter__(self) -> Iterator[bytes]:
        delivered = 0
        held: list[bytes] = []
        size = 0
        fault: StreamFault | None = None
        pieces = self._pieces()
        while True:
            try:
                piece = next(pieces, None)
            except StreamFault as failure:
                fault, piece = failure, None
            if piece is None:
                break
            held.append(piece)
            size += len(piece)
            while size >= self.chunk_bytes:
                joined = b"".join(held)
                yield joined[: self.chunk_bytes]
                delivered += self.chunk_bytes
                held = [joined[self.chunk_bytes :]]
                size -= self.chunk_bytes
        tail = b"".join(held)
        if fault is not None and self.compression:
            tail += self._salvage(delivered + len(tail))
        for start in range(0, len(tail), self.chunk_bytes):
            yield tail[start : start + self.chunk_bytes]
        if fault is not None:
            raise fault

    def _pieces(self) -> Iterator[bytes]:
        try:
            with open(self.path, "rb") as raw:
                for piece in _decompress(raw, self.compression, self.chunk_bytes):
                    self.position = raw.tell()
                    yield piece
                self.position = raw.tell()
        except OSError as failure:
            raise StreamFault(os_fault(failure)) from failure

    def _salvage(self, delivered: int) -> bytes:
        """Return what a second pass in small steps can decode beyond `delivered` bytes.

        A decompressor that meets a fault drops what the same call had decoded before it: up to a chunk of good records.
        """
        rest = b""
        for step in _SALVAGE_STEPS if self.compression == "zstd" else (1,):
            rest += self._decode_beyond(delivered + len(rest), step)
        return rest

    def _decode_beyond(self, delivered: int, step: int) -> bytes:
        rest = bytearray()
        seen = 0
        try:
            with open(self.path, "rb") as raw:
                if self.compression == "zstd":  # its reader is asked for small amounts of output
                    pieces = _zstd_pieces(raw, self.chunk_bytes, delivered, step)
                else:  # the others are fed small amounts of input
                    fine_from = max(0, self.position - INPUT_BYTES)
                    pieces = _member_pieces(raw, self.compression, self.chunk_bytes, fine_from)
                for piece in pieces:
                    if seen + len(piece) > delivered:
                        rest += piece[max(0, delivered - seen) :]
                    seen += len(piece)
        except (StreamFault, OSError):
            pass
        return bytes(rest)


def _decompress(raw: BinaryIO, compression: str, chunk_bytes: int) -> Iterator[bytes]:
    if not compression:
        while piece := raw.read(chunk_bytes):
            yield piece
    elif compression == "zstd":
        yield from _zstd_pieces(raw, chunk_bytes)
    else:
        yield from _member_pieces(raw, compression, chunk_bytes)


def _engine(compression: str) -> Callable[[], Any]:
    if compression == "gzip":
        from isal import igzip_lib

        return lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    if compression == "bzip2":
        import bz2

        return bz2.BZ2Decompressor
    import lzma

    return lzma.LZMADecompressor


def _member_pieces(raw: BinaryIO, compression: str, chunk_bytes: int, fine_from: int | None = None) -> Iterator[bytes]:
    """Decompress members one after the other, as gzip, bzip2 and xz files may hold several."""
    new = _engine(compression)
    engine: Any = None
    waiting = b""
    while True:
        if engine is None or engine.needs_input:
            waiting = waiting or raw.read(_step(raw, fine_from))
            if not waiting:
                break
        if engine is None:
            waiting = waiting.lstrip(b"\0")  # padding between members and at the end
            if not waiting:
                continue
            engine = new()
        try:
            piece = engine.decompress(waiting, chunk_bytes)
        except Exception as failure:  # each library has its own class of errors
            raise StreamFault(f"broken {compression} data: {failure}") from failure
        waiting = b""
        if piece:
            yield piece
        if engine.eof:
            waiting = engine.unused_data
            engine = None
    if engine is not None:
        raise StreamFault(f"truncated {compression} data: the file ends in the middle")


def _step(raw: BinaryIO, fine_from: int | None) -> int:
    if fine_from is None:
        return INPUT_BYTES
    ahead = fine_from - raw.tell()
    return min(ahead, INPUT_BYTES) if ahead > 0 else 1


def _zstd_pieces(raw: BinaryIO, chunk_bytes: int, fine_after: int | None = None, step: int = 1) -> Iterator[bytes]:
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
        raw, read_size=INPUT_BYTES, read_across_frames=True, closefd=False
    )
    size = 0
    try:
        while piece := reader.read(_output_step(size, chunk_bytes, fine_after, step)):
            size += len(piece)
            yield piece
    except zstandard.ZstdError as failure:
        raise StreamFault(f"broken zstd data: {failure}") from failure
    if not _zstd_is_whole(raw):
        # The library takes the end of the file for the end of the stream.
        raise StreamFault("truncated zstd data: the file ends in the middle")


def _output_step(size: int, chunk_bytes: int, fine_after: int | None, step: int) -> int:
    if fine_after is None:
        return chunk_bytes
    return min(chunk_bytes, fine_after - size) if size < fine_after else step


def _zstd_is_whole(raw: BinaryIO) -> bool:
    """Walk the headers of all frames and blocks (RFC 8878, section 3) and tell whether the last one is complete."""
    end = raw.seek(0, 2)
    position = 0
    while position < end:
        raw.seek(position)
        head = raw.read(18)
        magic = int.from_bytes(head[:4], "little")
        if len(head) < 5:
            return False
        if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            position += 8 + int.from_bytes(head[4:8], "little")
            continue
        if magic != _ZSTD_MAGIC:
            return True  # the decompressor had no complaint
        descriptor = head[4]
        single_segment = descriptor >> 5 & 1
        content_size = (single_segment, 2, 4, 8)[descriptor >> 6]
        position += 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size
        last = False
        while not last:
            raw.seek(position)
            block = raw.read(3)
            if len(block) < 3:
                return False
            header = int.from_bytes(block, "little")
            last = bool(header & 1)
            position += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
        position += 4 * (descriptor >> 2 & 1)
    return position == end
