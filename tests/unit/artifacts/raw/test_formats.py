"""What each format gives: ids, sources, languages, metadata, and errors whose kind stands before the colon."""

from __future__ import annotations

import json
import os

import pytest
from tests.zoo import PARAGRAPHS, http_response, warc_record

from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.raw import htmltext
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.artifacts.raw.pieces import RecordFault
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.raw.read import read_block


def read_file(path, content, **options):
    """Write a file and return (rows, invalid records)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    chosen = ReadOptions(**options)
    batches = [read_block(block, chosen) for block in plan_blocks(open_input(path), chosen)]
    rows = [row for batch in batches for row in batch.table.to_pylist()]
    return rows, [record for batch in batches for record in batch.invalid]


def metadata(row):
    return None if row["metadata"] is None else json.loads(row["metadata"])


# -- JSON lines -----------------------------------------------------------------------------------------------------


def test_fields_of_a_record(tmp_path):
    line = {"id": 7, "text": "t", "source": "web", "lang": "en", "licence": "MIT", "n": {"a": [1, None]}}
    (row,), _ = read_file(tmp_path / "a.jsonl", json.dumps(line))
    assert (row["id"], row["text"], row["source"], row["lang"]) == ("7", "t", "web", "en")
    assert metadata(row) == {"licence": "MIT", "n": {"a": [1, None]}}


def test_missing_fields_are_filled_from_the_place(tmp_path):
    root = tmp_path / "corpus"
    (root / "wiki" / "en").mkdir(parents=True)
    (root / "wiki" / "en" / "a.b.jsonl").write_bytes(b'{"text": "one"}\n{"text": "two"}\n')
    (root / "top.jsonl.gz").write_bytes(b'{"text": "three", "lang": "", "source": ""}\n')
    (block,) = plan_blocks(open_input(root), ReadOptions())
    rows = read_block(block, ReadOptions()).table.to_pylist()
    assert [row["id"] for row in rows] == ["top.jsonl.gz#0", "wiki/en/a.b.jsonl#0", "wiki/en/a.b.jsonl#16"]
    assert [row["source"] for row in rows] == ["top", "wiki", "wiki"]
    assert {row["lang"] for row in rows} == {None} and {row["metadata"] for row in rows} == {None}


def test_a_fixed_source_leaves_the_records_own_in_the_metadata(tmp_path):
    (row,), _ = read_file(tmp_path / "a.jsonl", '{"text": "t", "source": "own"}', source="fixed")
    assert row["source"] == "fixed" and metadata(row) == {"source": "own"}


def test_nested_and_renamed_fields(tmp_path):
    line = {"meta": {"body": "t", "id": 3, "x": 1}, "src": "s", "tags": {"lang": "de"}}
    fields = {"text_field": "meta.body", "id_field": "meta.id", "source_field": "src", "lang_field": "tags.lang"}
    (row,), _ = read_file(tmp_path / "a.jsonl", json.dumps(line), **fields)
    assert (row["id"], row["text"], row["source"], row["lang"]) == ("3", "t", "s", "de")
    assert metadata(row) == {"meta": {"x": 1}, "tags": {}}
    (row,), _ = read_file(tmp_path / "a.jsonl", '{"a.b": "dotted name"}', text_field="a.b")
    assert row["text"] == "dotted name"


def test_labels_that_are_no_labels_stay_in_the_metadata(tmp_path):
    (row,), _ = read_file(
        tmp_path / "a.jsonl", '{"text": "t", "source": {"name": "x"}, "lang": ["en"], "id": {"o": 1}}'
    )
    assert (row["id"], row["source"], row["lang"]) == ('{"o":1}', "a", None)
    assert metadata(row) == {"source": {"name": "x"}, "lang": ["en"]}
    (row,), _ = read_file(tmp_path / "a.jsonl", '{"text": "t", "source": 5}')
    assert row["source"] == "5"


def test_numbers_keep_their_value(tmp_path):
    big = 2**200 + 1
    line = (
        f'{{"text": "t", "id": {2**70}, "big": {big}, "deep": [{{"x": {2**64}}}], "f": 1e300, "nan": NaN, "small": 5}}'
    )
    (row,), _ = read_file(tmp_path / "a.jsonl", line)
    assert row["id"] == str(2**70)
    assert metadata(row) == {"big": big, "deep": [{"x": 2**64}], "f": 1e300, "nan": None, "small": 5}


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**19, 10**25])
def test_integers_around_64_bits_are_exact(tmp_path, number):
    for line in (f'{{"text": "t", "n": {number}}}', f'{{"text": "t", "n": [{{"a": {number}}}]}}'):
        (row,), _ = read_file(tmp_path / "a.jsonl", line)
        assert str(number) in row["metadata"]


ERRORS = [
    (b"hello", "not JSON"),
    (b'{"text": "a"}{"text": "b"}', "not JSON"),
    (b'{"text": "a\x00b"}', "not JSON"),
    (b'{"text": "a', "not JSON"),
    (b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}", "not JSON"),
    (b'{"text": "t", "n": ' + b"9" * 5000 + b"}", "not JSON"),
    (b'{"text": "caf\xe9"}', "not UTF-8"),
    (b'{"text": "\\udc00"}', "lone surrogate"),
    (b'{"text": "t", "other": ["\\ud800"]}', "lone surrogate"),
    (b"[1]", "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'{"content": "x", "url": "y"}', "no field `text`"),
    (b"{}", "no field `text`"),
    (b'{"text": null}', "field `text` is null"),
    (b'{"text": 5}', "field `text` is not a string"),
    (b'{"text": NaN}', "field `text` is not a string"),
    (b'{"text": ["a"]}', "field `text` is not a string"),
    (b'{"text": "' + b"x" * 20_000 + b'"}', "record too long"),
]


@pytest.mark.parametrize(("line", "kind"), ERRORS, ids=range(len(ERRORS)))
def test_one_bad_line_never_costs_another(tmp_path, line, kind):
    content = b'{"text": "before"}\n\n' + line + b'\r\n{"text": "after"}'
    rows, (record,) = read_file(tmp_path / "a.jsonl", content, max_record_bytes=15_000)
    assert [row["text"] for row in rows] == ["before", "after"]
    assert record.error.split(":")[0] == kind
    assert (record.line, record.offset) == (3, 20)
    assert line.startswith(record.head.rstrip(b"\r"))
    json.dumps(record.to_mapping())


def test_the_error_names_the_fields_that_are_there(tmp_path):
    _, (record,) = read_file(tmp_path / "a.jsonl", '{"url": 1, "content": "x"}')
    assert record.error == "no field `text`: the fields are content, url"


def test_lines_are_cut_at_newlines_only(tmp_path):
    text = "one\u2028two\u2029three\x85\x0b\x0c\x1c\r four"
    rows, invalid = read_file(tmp_path / "a.jsonl", json.dumps({"text": text}, ensure_ascii=False))
    assert rows[0]["text"] == text and not invalid


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path):
    rows, invalid = read_file(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "a", "id": "1"}\n{"text": "b"}')
    assert [row["id"] for row in rows] == ["1", "a.jsonl#28"] and not invalid


# -- arrays ---------------------------------------------------------------------------------------------------------


def test_an_array_gives_its_elements_with_their_offsets(tmp_path):
    content = '[ {"text": "a ] , [ \\" {"},\n\n {"text": "b",\n  "x": [1, {"y": 2}]} , 5, {"text": "c"}\n]\n'
    rows, (record,) = read_file(tmp_path / "a.json", content)
    assert [row["text"] for row in rows] == ['a ] , [ " {', "b", "c"]
    assert metadata(rows[1]) == {"x": [1, {"y": 2}]}
    assert record.error == "not a JSON object: int" and content[record.offset :].lstrip().startswith("5")


# -- tables ---------------------------------------------------------------------------------------------------------


def write_table(path, **columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path.read_bytes()


def test_parquet_columns(tmp_path):
    import pyarrow as pa

    content = write_table(
        tmp_path / "a.parquet",
        id=pa.array([1, None, 3]),
        text=pa.array(["a", "b", "c"]),
        source=pa.array(["s", None, ""]).dictionary_encode(),
        lang=pa.array(["en", None, "de"]),
        day=pa.array([0, 1, None], pa.date32()),
        tags=pa.array([["x"], [], None]),
    )
    rows, invalid = read_file(tmp_path / "a.parquet", content)
    assert not invalid
    assert [row["id"] for row in rows] == ["1", "a.parquet#1", "3"]
    assert [row["source"] for row in rows] == ["s", "a", "a"]
    assert [row["lang"] for row in rows] == ["en", None, "de"]
    assert [metadata(row) for row in rows] == [
        {"day": "1970-01-01", "tags": ["x"]},
        {"day": "1970-01-02", "tags": []},
        None,
    ]


def test_parquet_with_nested_text_and_odd_values(tmp_path):
    import pyarrow as pa

    content = write_table(
        tmp_path / "a.parquet",
        meta=pa.array([{"body": "a", "n": 1}, {"body": None, "n": 2}]),
        raw=pa.array([b"\xff", b""]),
    )
    (row,), (record,) = read_file(tmp_path / "a.parquet", content, text_field="meta.body")
    assert row["text"] == "a" and metadata(row)["meta"] == {"n": 1}
    assert (record.error, record.offset) == ("field `meta.body` is null", 1)


def test_parquet_text_as_bytes_is_checked(tmp_path):
    content = write_table(tmp_path / "a.parquet", text=[b"good", b"\xff", b"also good"])
    rows, (record,) = read_file(tmp_path / "a.parquet", content)
    assert [row["text"] for row in rows] == ["good", "also good"]
    assert record.error.startswith("not UTF-8:") and record.offset == 1
    assert [row["id"] for row in rows] == ["a.parquet#0", "a.parquet#2"]


def test_parquet_without_text_is_one_error(tmp_path):
    content = write_table(tmp_path / "a.parquet", content=["a", "b"])
    rows, (record,) = read_file(tmp_path / "a.parquet", content)
    assert not rows and record.error == "no field `text`: the fields are content"
    content = write_table(tmp_path / "a.parquet", text=[1, 2])
    rows, (record,) = read_file(tmp_path / "a.parquet", content)
    assert not rows and record.error == "field `text` is not a string: the column holds int64"


def test_a_broken_row_group_costs_no_other(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [os.urandom(200).hex() for _ in range(30)]}), path, row_group_size=10)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 60] = b"\xff" * 60
    rows, (record,) = read_file(path, bytes(data))
    assert len(rows) == 20
    assert record.error.startswith("broken Parquet: row group 1 of 10 rows") and record.offset == 10


def test_csv_rows(tmp_path):
    content = (
        '\ufeffid,text,n\r\n1,"two\r\nlines, ""quoted""",x\r\n\r\n,plain,\r\n3,,y\r\n4,"" bad,\r\n5,"open\r\n6,end,z'
    )
    rows, invalid = read_file(tmp_path / "a.csv", content)
    assert [row["id"] for row in rows] == ["1", "a.csv#1", "3", "6"]
    assert [row["text"] for row in rows] == ['two\r\nlines, "quoted"', "plain", "", "end"]
    assert [metadata(row) for row in rows] == [{"n": "x"}, None, {"n": "y"}, {"n": "z"}]
    assert [record.line for record in invalid] == [7, 8]
    assert {record.error.split(":")[0] for record in invalid} == {"not CSV"}


def test_csv_errors(tmp_path):
    rows, invalid = read_file(tmp_path / "a.csv", b"id;text\n1;a\n2;b;c\n3;caf\xe9\n4;d\n")
    assert [row["text"] for row in rows] == ["a", "d"]
    assert [record.error for record in invalid] == [
        "wrong number of columns: 3 instead of 2",
        "not UTF-8: a byte that is no character",
    ]
    _, (record,) = read_file(tmp_path / "a.csv", "id,body\n1,a\n2,b\n")
    assert record.error == "no field `text`: the fields are body, id"


# -- whole files ----------------------------------------------------------------------------------------------------


def test_plain_text_is_one_document(tmp_path):
    (row,), _ = read_file(tmp_path / "a.txt", "\ufeffGrüße\n\n")
    assert (row["id"], row["text"], row["source"], row["metadata"]) == ("a.txt", "Grüße\n\n", "a", None)
    (row,), _ = read_file(tmp_path / "b.txt", "中文".encode("utf-16"))
    assert row["text"] == "中文"
    rows, (record,) = read_file(tmp_path / "c.txt", b"caf\xe9")
    assert not rows and record.error.startswith("not UTF-8:")
    rows, (record,) = read_file(tmp_path / "d.txt", "x" * 5000, max_record_bytes=4000)
    assert not rows and record.error == "record too long: more than 4,000 bytes"


PAGE = (
    "<html><head><title>A &amp; B</title><script>var x = 1;</script></head><body><nav><a href='/'>Home</a></nav>"
    f"<main><h1>Café</h1><p>{PARAGRAPHS[0]}</p><p>{PARAGRAPHS[1]}</p></main><footer>© someone</footer></body></html>"
)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_html_gives_its_main_text_and_title(tmp_path, encoding):
    page = PAGE.replace("<head>", f"<head><meta charset='{encoding}'>")
    (row,), _ = read_file(tmp_path / "a.html", page.encode(encoding))
    assert "Café" in row["text"] and PARAGRAPHS[1] in row["text"]
    assert "Home" not in row["text"] and "var x" not in row["text"]
    assert metadata(row) == {"title": "A & B"}


def test_html_without_running_text_is_read_whole(tmp_path):
    (row,), _ = read_file(tmp_path / "a.html", "<html><body><nav>only navigation</nav></body></html>")
    assert "only navigation" in row["text"]


def test_a_page_that_hangs_costs_only_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMCTL_HTML_CPU_S", "1")
    htmltext._extractor.close()
    root = tmp_path / "pages"
    root.mkdir()
    (root / "a.html").write_text("<html><body>" + "<div>" * 100_000 + "deep")
    (root / "b.html").write_text(PAGE)
    (block,) = plan_blocks(open_input(root), ReadOptions())
    batch = read_block(block, ReadOptions())
    htmltext._extractor.close()
    assert [record.error for record in batch.invalid] == ["HTML takes too long: more than 1 s"]
    assert [batch.files[index] for index in batch.file_index] == ["b.html"]


def test_a_parser_that_crashes_is_started_again():
    htmltext.html_text(PAGE.encode())
    htmltext._extractor._process.kill()
    with pytest.raises(RecordFault, match="HTML crashes the parser"):
        htmltext.html_text(PAGE.encode())
    assert "Café" in htmltext.html_text(PAGE.encode())[0]


@pytest.mark.parametrize("charset", ["nonsense", "rot13", "utf-16", "\x00"])
def test_a_wrong_charset_does_not_stop_a_page(charset):
    text, _ = htmltext.html_text(PAGE.encode("latin-1"), charset)
    assert isinstance(text, str)


# -- WARC -----------------------------------------------------------------------------------------------------------


def test_warc_records(tmp_path):
    import gzip as gz

    chunked = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    encoded = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n" + gz.compress(b"packed")
    in_chunks = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked
    content = b"".join(
        [
            warc_record("warcinfo", b"x: y\r\n"),
            warc_record("response", http_response(PAGE.encode("latin-1"), "text/html; charset=latin-1"), 1),
            warc_record("response", encoded, 2),
            warc_record("response", in_chunks, 3),
            warc_record("response", http_response(b"...", "application/pdf"), 4),
            warc_record("response", http_response(b"gone", status="404 Not Found"), 5),
            warc_record("conversion", "größer".encode(), 6, **{"WARC-Identified-Content-Language": "deu,eng"}),
            warc_record("metadata", b"fetchTimeMs: 5\r\n", 7),
        ]
    )
    rows, invalid = read_file(tmp_path / "a.warc", content)
    (block,) = plan_blocks(open_input(tmp_path / "a.warc"), ReadOptions())
    assert read_block(block, ReadOptions()).skipped == {"not text": 1, "HTTP status 4xx": 1}
    assert [row["text"] for row in rows[1:]] == ["packed", "hello world", "größer"]
    assert "Café" in rows[0]["text"]
    assert rows[0]["id"] == "<urn:uuid:response-1>"
    assert metadata(rows[0]) == {"url": "https://example.org/1", "date": "2024-01-01T00:00:00Z", "title": "A & B"}
    assert rows[-1]["lang"] == "deu"
    assert invalid == []


def test_a_warc_record_that_is_too_long_costs_no_other(tmp_path):
    records = [warc_record("conversion", b"x" * size, size) for size in (100, 50_000, 200)]
    rows, (record,) = read_file(tmp_path / "a.warc", b"".join(records), max_record_bytes=10_000)
    assert [len(row["text"]) for row in rows] == [100, 200]
    assert record.error.startswith("record too long:") and record.offset == len(records[0])
