"""Whatever a file holds, reading it gives records and invalid records, never an exception, and memory stays bounded."""

from __future__ import annotations

import gzip
import random
import tempfile
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.zoo import build_zoo, warc_record

from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.raw.blocks import FORMATS, ReadOptions
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.raw.read import read_block

NAMES = ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.warc", "a.txt", "a.md", "a.gz", "a.zst", "a"]
FRAGMENTS = [
    b"\n", b"\r\n", b"{", b"}", b"[", b"]", b'"', b'"text"', b":", b",", b"\\", b"\\u", b"id,text\n", b"\x00", b"\xff",
    b"WARC/1.0\r\n", b"Content-Length: 5\r\n", b"WARC-Type: response\r\n", b"\r\n\r\n",
    b"PAR1", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd",
    b"x" * 50, "名".encode(), b'{"text": "good"}\n', b"1,good\n",
]  # fmt: skip


def survive(path: Path, **options) -> tuple[int, int]:
    """Read an input with two sizes of block and return how many records it gave."""
    counts = set()
    for block_bytes in (1024, 256_000_000):
        chosen = ReadOptions(block_bytes=block_bytes, max_record_bytes=5000, **options)
        rows = invalid = 0
        for block in plan_blocks(open_input(path), chosen):
            batch = read_block(block, chosen)
            batch.table.validate(full=True)
            assert not any(column.null_count for column in batch.table.columns[:3])
            assert len(batch.file_index) == batch.table.num_rows
            orjson.dumps([record.to_mapping() for record in batch.invalid])
            assert all(record.error.split(":")[0] for record in batch.invalid)
            rows, invalid = rows + batch.table.num_rows, invalid + len(batch.invalid) + batch.skipped.total()
        counts.add(rows)
    assert len(counts) == 1, "the size of blocks changed what was read"
    return rows, invalid


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.one_of(st.binary(max_size=3000), st.lists(st.sampled_from(FRAGMENTS), max_size=80).map(b"".join)),
    st.sampled_from([name for name in FORMATS if name != "html"]),
    st.booleans(),
)
def test_random_bytes(name, content, form, packed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
        survive(path, format=form)


def test_damaged_files_of_the_zoo(tmp_path):
    build_zoo(tmp_path / "zoo", num_identical=5, long_text_bytes=1000)
    chance = random.Random(0)
    files = [path for path in sorted((tmp_path / "zoo").rglob("*")) if path.is_file() and "loop" not in path.parts]
    for path in files:
        if path.suffix in (".html",) or "html" in path.name:
            continue  # each page costs a round trip to the parser; the next test has them
        data = path.read_bytes()
        for number in range(4):
            damaged = bytearray(data)
            for _ in range(1 + number):
                if damaged:
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            target = tmp_path / "damaged" / path.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(bytes(damaged[: chance.randrange(len(damaged) + 1)] if number == 3 else damaged))
            survive(target)
            target.unlink()


def test_damaged_pages(tmp_path):
    chance = random.Random(1)
    page = b"<html><head><title>t</title></head><body><table><tr><td>x<p>" + b"<b>bold <i>both</b> text</i>" * 20
    for number in range(20):
        damaged = bytearray(page)
        for _ in range(10):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (tmp_path / f"{number}.html").write_bytes(bytes(damaged))
    rows, invalid = survive(tmp_path)
    assert rows + invalid == 20


@pytest.mark.parametrize(
    "headers",
    [{"WARC-Target-URI": "http://x/\udcff"}, {"WARC-Record-ID": "\udcff"}, {"Content-Type": "application/\udcff"}],
)
def test_warc_headers_that_are_not_utf8(tmp_path, headers):
    clean = {name: value.replace("\udcff", "@") for name, value in headers.items()}
    content = warc_record("conversion", b"text", 1, **clean).replace(b"@", b"\xff")
    (tmp_path / "a.warc").write_bytes(content)
    assert sum(survive(tmp_path / "a.warc")) == 1
