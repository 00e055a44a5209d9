"""Compressed streams: bounded, in chunks of the size asked for, with everything before a fault."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os

import pytest
import zstandard

from llmctl.artifacts.raw.streams import ChunkReader, StreamFault, compression_of

COMPRESS = {
    "": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
CONTENT = b"".join(b"line %d of some text\n" % number for number in range(20_000)) + os.urandom(3000)


def drain(path, compression, chunk_bytes=1 << 16):
    chunks, fault = [], None
    try:
        for chunk in ChunkReader(path, compression, chunk_bytes):
            chunks.append(chunk)
    except StreamFault as failure:
        fault = str(failure)
    return chunks, fault


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("chunk_bytes", [1000, 1 << 16, 1 << 24])
def test_chunks_have_the_size_asked_for(tmp_path, compression, chunk_bytes):
    path = tmp_path / "file"
    path.write_bytes(COMPRESS[compression](CONTENT))
    chunks, fault = drain(path, compression, chunk_bytes)
    assert fault is None
    assert b"".join(chunks) == CONTENT
    assert {len(chunk) for chunk in chunks[:-1]} <= {chunk_bytes}
    assert compression_of(path.read_bytes()[:16]) == compression


@pytest.mark.parametrize("compression", ["gzip", "zstd", "bzip2", "xz"])
def test_members_and_frames_follow_one_another(tmp_path, compression):
    path = tmp_path / "file"
    path.write_bytes(COMPRESS[compression](b"one ") + COMPRESS[compression](b"") + COMPRESS[compression](b"two"))
    assert drain(path, compression) == ([b"one two"], None)


@pytest.mark.parametrize("compression", ["gzip", "zstd", "bzip2", "xz"])
def test_a_file_cut_anywhere_gives_a_beginning_and_a_fault(tmp_path, compression):
    path = tmp_path / "file"
    whole = COMPRESS[compression](CONTENT)
    reached = []
    for cut in [*range(1, 30), *range(30, len(whole), len(whole) // 40), len(whole) - 3, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        chunks, fault = drain(path, compression)
        data = b"".join(chunks)
        assert fault is not None and "truncated" in fault, cut
        assert CONTENT.startswith(data)
        reached.append(len(data))
    assert reached == sorted(reached)
    assert reached[-1] > len(CONTENT) * 0.7


def test_what_was_flushed_before_a_broken_place_is_given(tmp_path):
    import zlib

    engine = zlib.compressobj(wbits=31)
    good = engine.compress(CONTENT) + engine.flush(zlib.Z_FULL_FLUSH)
    path = tmp_path / "file"
    path.write_bytes(good + b"\xff" * 200)
    chunks, fault = drain(path, "gzip", 1 << 20)
    assert b"".join(chunks) == CONTENT
    assert fault.startswith("broken gzip data")


def test_blocks_of_zstd_before_a_broken_one_are_given(tmp_path):
    first = zstandard.ZstdCompressor().compress(CONTENT)
    path = tmp_path / "file"
    path.write_bytes(first + b"\x28\xb5\x2f\xfd" + b"\xff" * 50)
    chunks, fault = drain(path, "zstd", 1 << 24)
    assert b"".join(chunks) == CONTENT
    assert fault.startswith("broken zstd data")


def test_a_wrong_checksum_is_told_after_the_data(tmp_path):
    path = tmp_path / "file"
    for compression, place in (("gzip", -8), ("zstd", -1)):
        broken = bytearray(COMPRESS[compression](CONTENT))
        broken[place] ^= 0xFF
        path.write_bytes(bytes(broken))
        chunks, fault = drain(path, compression)
        assert fault.startswith("broken")
        assert len(b"".join(chunks)) > len(CONTENT) * 0.7
        assert CONTENT.startswith(b"".join(chunks))


def test_a_very_large_window_is_read(tmp_path):
    parameters = zstandard.ZstdCompressionParameters(window_log=30, compression_level=1)
    path = tmp_path / "file"
    out = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path.write_bytes(out.compress(CONTENT) + out.flush())
    assert b"".join(drain(path, "zstd")[0]) == CONTENT


def test_a_bomb_does_not_fill_memory(tmp_path):
    import tracemalloc

    path = tmp_path / "bomb"
    engine = zstandard.ZstdCompressor(level=1).compressobj()
    block = b"\0" * 1_000_000
    path.write_bytes(b"".join(engine.compress(block) for _ in range(300)) + engine.flush())
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    size = sum(len(chunk) for chunk in ChunkReader(path, "zstd", 1 << 16))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 300_000_000
    assert peak < 20_000_000


def test_what_cannot_be_opened_is_a_fault(tmp_path):
    assert drain(tmp_path / "nothing", "")[1] == "unreadable file: No such file or directory"
    assert drain(tmp_path, "gzip")[1] == "unreadable file: Is a directory"
