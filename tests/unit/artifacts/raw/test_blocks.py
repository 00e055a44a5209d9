"""Blocks depend on the input and the options alone, and any size of block gives the same records."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.zoo import http_response, lines, warc_record

from llmctl.artifacts.documents import write_parquet
from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.kinds import documents_schema
from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.raw import read
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.raw.read import content_key, read_block


def read_all(path, **options):
    """Return (blocks, rows as mappings, invalid records as tuples) of an input."""
    chosen = ReadOptions(**options)
    blocks = list(plan_blocks(open_input(path), chosen))
    rows, invalid = [], []
    for block in blocks:
        batch = read_block(block, chosen)
        assert batch.content_hash == content_key(block)
        assert batch.table.schema.equals(documents_schema())
        rows += batch.table.to_pylist()
        invalid += [(record.file, record.offset, record.error) for record in batch.invalid]
    return blocks, rows, invalid


json_lines = st.lists(
    st.one_of(
        st.text(max_size=60).map(lambda text: json.dumps({"text": text}).encode()),
        st.text(max_size=60).map(
            lambda text: json.dumps({"text": text, "id": "x"}, ensure_ascii=False).encode("utf-8", "replace")
        ),
        st.sampled_from(
            [b"", b"\r", b"not json", b'{"text": null}', b"\xff", b"{}", b'{"text": "' + b"long " * 500 + b'"}']
        ),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(json_lines, st.integers(1024, 4000), st.sampled_from(["", ".gz", ".zst"]), st.booleans())
def test_any_size_of_block_gives_the_same_records(content, block_bytes, suffix, final_newline):
    data = b"\n".join(content) + (b"\n" if final_newline else b"")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.jsonl{suffix}"
        path.write_bytes(compress(data, suffix))
        options = {"max_record_bytes": 2000}
        _, rows, invalid = read_all(path, **options)
        _, cut_rows, cut_invalid = read_all(path, block_bytes=block_bytes, **options)
    assert (cut_rows, cut_invalid) == (rows, invalid)


def compress(data, suffix):
    if suffix == ".gz":
        return gzip.compress(data, mtime=0)
    if suffix == ".zst":
        import zstandard

        return zstandard.compress(data)
    return data


def corpus_csv():
    rows = ["id,text"] + [f'{n},"row {n}\nwith ""quotes"" and lines"' for n in range(200)] + ['x,"stray', "last,row"]
    return "\n".join(rows).encode()


def corpus_warc():
    return b"".join(
        warc_record("response", http_response(f"text {n} ".encode() * 20, "text/plain"), n) for n in range(60)
    )


FORMATS = {
    "a.jsonl": lines(80),
    "a.json": json.dumps([{"id": n, "text": f'element {n}, ["quoted"]'} for n in range(300)], indent=1).encode(),
    "a.csv": corpus_csv(),
    "a.warc": corpus_warc(),
}


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_can_be_cut(tmp_path, name, suffix):
    path = tmp_path / (name + suffix)
    path.write_bytes(compress(FORMATS[name], suffix))
    whole_blocks, whole, whole_invalid = read_all(path)
    assert len(whole_blocks) == 1 and len(whole) >= 60
    for block_bytes in (1024, 1500, 5000):
        blocks, rows, invalid = read_all(path, block_bytes=block_bytes)
        assert len(blocks) > 1
        assert rows == whole
        assert [item[:2] for item in invalid] == [item[:2] for item in whole_invalid]


def test_parquet_is_cut_between_row_groups(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": [f"row {n} " * 50 for n in range(100)], "stars": list(range(100))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10, compression="none")
    _, whole, _ = read_all(tmp_path / "a.parquet")
    blocks, rows, _ = read_all(tmp_path / "a.parquet", block_bytes=10_000)
    assert rows == whole and len(blocks) > 3
    assert rows[57]["id"] == "a.parquet#57"
    assert {(block.segments[0].start, block.segments[0].end) for block in blocks} >= {(0, 2)}


def test_names_are_unique_sorted_and_the_same_every_time(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(30))
    (tmp_path / "b.jsonl").write_bytes(lines(1))
    (tmp_path / "c.jsonl").write_bytes(lines(1))
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(lines(30), mtime=0))
    (tmp_path / "e.txt").write_text("text")
    names = [block.name for block in read_all(tmp_path, block_bytes=4000)[0]]
    assert names == sorted(set(names)) == [block.name for block in read_all(tmp_path, block_bytes=4000)[0]]
    assert names[0] == "00000-00000" and "00001-00000" in names and "00003-00001" in names


def test_small_files_share_a_block(tmp_path):
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text(f"text {number}")
    blocks, rows, _ = read_all(tmp_path)
    assert len(blocks) == 1 and len(rows) == 20
    batch = read_block(blocks[0], ReadOptions())
    assert [batch.files[index] for index in batch.file_index] == [f"{number:02}.txt" for number in range(20)]
    assert blocks[0].input_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_input_bytes_add_up_to_the_input(tmp_path):
    for name, data in (
        ("a.jsonl", lines(50)),
        ("b.jsonl.gz", gzip.compress(lines(50), mtime=0)),
        ("c.csv", corpus_csv()),
    ):
        (tmp_path / name).write_bytes(data)
    source = open_input(tmp_path)
    for block_bytes in (1024, 10_000, 1_000_000):
        total = sum(block.input_bytes for block in plan_blocks(source, ReadOptions(block_bytes=block_bytes)))
        assert total == source.total_bytes


def test_the_content_key_follows_the_content(tmp_path):
    path = tmp_path / "a.jsonl"
    data = lines(60)
    path.write_bytes(data)
    before = [content_key(block) for block in plan_blocks(open_input(path), ReadOptions(block_bytes=8000))]
    os.utime(path, (1, 1))
    assert before == [content_key(block) for block in plan_blocks(open_input(path), ReadOptions(block_bytes=8000))]
    place = data.index(b"report number 30")
    path.write_bytes(data[:place] + b"REPORT" + data[place + 6 :])
    after = [content_key(block) for block in plan_blocks(open_input(path), ReadOptions(block_bytes=8000))]
    assert len(before) == len(after)
    assert [old == new for old, new in zip(before, after, strict=True)].count(False) == 1


def test_our_own_documents_pass_through(tmp_path):
    import pyarrow as pa

    rows = [{"id": f"{n}", "text": f"text {n}", "source": "s", "lang": None, "metadata": '{"a":1}'} for n in range(10)]
    table = pa.Table.from_pylist(rows, schema=documents_schema())
    record = write_parquet(tmp_path / "clean", "data/00000-00000.parquet", table)
    removed = write_parquet(tmp_path / "clean", "removed/00000-00000.parquet", table)
    Manifest("documents", "filter", {}, files=[record, removed]).write(tmp_path / "clean")
    _, read_rows, invalid = read_all(tmp_path / "clean")
    assert read_rows == rows and not invalid


def test_a_file_that_vanishes_after_planning_is_told(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(lines(2))
    blocks = list(plan_blocks(open_input(tmp_path), ReadOptions()))
    (tmp_path / "a.jsonl").unlink()
    batch = read_block(blocks[0], ReadOptions())
    assert batch.table.num_rows == 2
    assert [(record.file, record.error) for record in batch.invalid] == [
        ("a.jsonl", "unreadable file: No such file or directory")
    ]


def test_a_file_that_vanishes_before_planning_is_told(tmp_path):
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet", "d.txt"):
        (tmp_path / name).write_bytes(b"x")
    source = open_input(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    (block,) = plan_blocks(source, ReadOptions())
    assert {record.error for record in read_block(block, ReadOptions()).invalid} == {
        "unreadable file: No such file or directory"
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_told(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(1))
    (tmp_path / "a.jsonl").chmod(0)
    _, rows, invalid = read_all(tmp_path)
    assert not rows and invalid == [("a.jsonl", None, "unreadable file: Permission denied")]


def test_a_bomb_of_one_long_line_is_told_and_the_rest_goes_on(tmp_path):
    bomb = gzip.compress(b'{"text": "' + b"a" * 30_000_000 + b'"}\n' + lines(2), mtime=0)
    assert len(bomb) < 100_000
    (tmp_path / "bomb.jsonl.gz").write_bytes(bomb)
    for block_bytes in (1_000_000, 256_000_000):
        _, rows, invalid = read_all(tmp_path, max_record_bytes=1_000_000, block_bytes=block_bytes)
        assert len(rows) == 2
        assert invalid == [("bomb.jsonl.gz", 0, "record too long: more than 1,000,000 bytes")]


def test_a_file_that_hides_a_bomb_behind_a_harmless_head_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "SWELL_BYTES", 1_000_000)
    head = os.urandom(200_000).hex().encode()
    harmless = b'{"text": "' + head + b'"}\n'
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(harmless, mtime=0) + gzip.compress(b'{"text": "again"}\n' * 2_000_000, mtime=0))
    _, rows, invalid = read_all(path, block_bytes=2_000_000)
    assert len(rows) > 1_000_000
    assert len(invalid) == 1 and invalid[0][2].startswith("decompression bomb: more than")


def test_nothing_is_lost_when_a_block_is_larger_than_memory_pieces(tmp_path):
    out = io.BytesIO()
    for number in range(3000):
        out.write(json.dumps({"id": str(number), "text": "x" * 1000}).encode() + b"\n")
    (tmp_path / "a.jsonl").write_bytes(out.getvalue())
    _, rows, _ = read_all(tmp_path / "a.jsonl")
    assert [row["id"] for row in rows] == [str(number) for number in range(3000)]
