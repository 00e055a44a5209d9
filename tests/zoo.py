"""The input zoo: every odd kind of input file that a data stage must survive, with the counts it must report.

    expected = build_zoo(folder)
    expected["truncated.jsonl.gz"]      # Expected(valid=5, invalid=1)

Paths are printable, as stages report them. Blank lines and empty files are no records.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARAGRAPHS = (
    "The harbour of the old town is small, but every morning the boats come back with more fish than the market "
    "can sell, and the people of the hills walk down to buy what is left.",
    "In the library on the square there is a map of the coast that was drawn by hand, and nobody knows who made it "
    "or when; the paper is older than the building in which it hangs.",
    "When the wind turns to the north the bells can be heard as far as the lighthouse, where the keeper writes the "
    "hour into a book that his grandmother began.",
    "There are two ways over the mountain, and the longer one is the safer in winter, because the snow does not "
    "stay on the slopes that face the sea.",
    "A ship that left in the spring came home in the autumn with seeds, tools and a letter, and the letter was read "
    "aloud in front of the church until everyone knew it by heart.",
)


@dataclass(frozen=True)
class Expected:
    """What a stage must count for one file: records read, and records that cannot be read."""

    valid: int
    invalid: int = 0

    @property
    def records(self) -> int:
        """Return the number of records that go in."""
        return self.valid + self.invalid


def document(number: int, paragraphs: int = 3) -> str:
    """Return a plausible English text that differs from one number to the next."""
    chosen = [PARAGRAPHS[(number + step) % len(PARAGRAPHS)] for step in range(paragraphs)]
    return "\n\n".join([f"This is report number {number} of the harbour office.", *chosen])


def line(text: Any, **fields: Any) -> bytes:
    """Return one JSON line."""
    return json.dumps({**fields, "text": text}, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def lines(count: int, first: int = 0) -> bytes:
    """Return JSON lines of different documents with ids."""
    return b"".join(line(document(number), id=f"doc-{number}") for number in range(first, first + count))


def build_zoo(folder: Path, *, num_identical: int = 1000, long_text_bytes: int = 2_000_000) -> dict[str, Expected]:
    """Write the zoo and return the expected counts of each file by its printable relative path.

    Args:
        folder: is made if it does not exist.
        num_identical: documents that are all the same (a bucket whose pairs must not be compared one by one).
        long_text_bytes: length of the longest line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    zoo = _Zoo(folder)
    _json_lines(zoo, long_text_bytes)
    _compressed(zoo)
    _scripts(zoo)
    _duplicates(zoo, num_identical)
    _names(zoo)
    _tables(zoo)
    _whole_files(zoo)
    _warc(zoo)
    os.symlink(folder, folder / "loop")
    os.symlink(folder / "nowhere", folder / "dangling.jsonl")
    return zoo.expected


class _Zoo:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: dict[str, Expected] = {}

    def add(self, name: str | bytes, data: bytes, valid: int, invalid: int = 0) -> None:
        """Write one file and note what it must count for."""
        path = Path(os.fsdecode(os.path.join(os.fsencode(self.folder), os.fsencode(name))))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        printable = os.fsencode(name).decode("utf-8", "backslashreplace")
        self.expected[printable] = Expected(valid, invalid)


def _json_lines(zoo: _Zoo, long_text_bytes: int) -> None:
    good = line(document(1))
    zoo.add("empty.jsonl", b"", 0)
    zoo.add("only-newlines.jsonl", b"\n\n\r\n  \n", 0)
    zoo.add("no-final-newline.jsonl", lines(2).rstrip(b"\n"), 2)
    zoo.add("blank-lines.jsonl", b"\n" + good + b"\n\n" + line(document(2)) + b"\n", 2)
    zoo.add("crlf.jsonl", lines(3).replace(b"\n", b"\r\n"), 3)
    zoo.add("bom.jsonl", b"\xef\xbb\xbf" + lines(2), 2)
    zoo.add("nul-escape.jsonl", line("before\u0000after " + document(3)), 1)
    zoo.add("raw-nul.jsonl", good + b'{"text": "a\x00b"}\n' + line(document(2)), 2, 1)
    zoo.add("lone-surrogate.jsonl", good + b'{"text": "\\ud800 alone"}\n{"text": "\\ud83d\\ude00 pair"}\n', 2, 1)
    zoo.add("nan.jsonl", b'{"text": "not a number", "score": NaN}\n{"text": "endless", "score": -Infinity}\n', 2)
    zoo.add("separators.jsonl", line("one\u2028two\u2029three\x85four\x0b\x0cfive\x1c"), 1)
    zoo.add("long-line.jsonl", good + line("long " * (long_text_bytes // 5)) + line(document(2)), 3)
    zoo.add("invalid-utf8.jsonl", good + b'{"text": "caf\xe9"}\n' + line(document(2)), 2, 1)
    zoo.add("missing-text.jsonl", good + b'{"content": "elsewhere"}\n{}\n', 1, 2)
    zoo.add("null-text.jsonl", good + line(None), 1, 1)
    zoo.add("number-text.jsonl", good + line(5) + line(["a", "list"]) + line({"an": "object"}), 1, 3)
    zoo.add("empty-text.jsonl", line("") + line("  \n "), 2)
    zoo.add("not-objects.jsonl", b'[1, 2]\n"text"\n5\nnull\n' + good, 1, 4)
    zoo.add("not-json.jsonl", b"hello\n{'text': 'single quotes'}\n{\"text\": \"cut\n" + good, 1, 3)
    zoo.add("two-on-a-line.jsonl", b'{"text": "a"}{"text": "b"}\n' + good, 1, 1)
    zoo.add("deep.jsonl", b'{"text": "x", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n" + good, 1, 1)
    zoo.add("duplicate-ids.jsonl", line(document(4), id="same") + line(document(5), id="same"), 2)
    zoo.add("no-ids.jsonl", line(document(6)) + line(document(7)), 2)
    zoo.add("odd-ids.jsonl", line("a", id=7) + line("b", id=None) + line("c", id=1.5) + line("d", id=[1]), 4)
    zoo.add("large-integers.jsonl", line("large", number=2**63, larger=2**70, id=2**80), 1)


def _compressed(zoo: _Zoo) -> None:
    import bz2
    import lzma

    import zstandard

    zoo.add("two-members.jsonl.gz", gzip.compress(lines(2, 10), mtime=0) + gzip.compress(lines(2, 12), mtime=0), 4)
    zoo.add("padded.jsonl.gz", gzip.compress(lines(2, 14), mtime=0) + b"\0" * 512, 2)
    zoo.add("trailing-garbage.jsonl.gz", gzip.compress(lines(2, 16), mtime=0) + b"garbage", 2, 1)
    zoo.add("truncated.jsonl.gz", _flushed_gzip(5, 20)[:-20], 5, 1)
    broken = bytearray(gzip.compress(lines(3, 26), mtime=0))
    broken[-8:-4] = b"\0\0\0\0"  # the checksum
    zoo.add("wrong-checksum.jsonl.gz", bytes(broken), 3, 1)
    zoo.add("not-gzip.jsonl.gz", lines(2, 30), 2)
    zoo.add("empty.jsonl.gz", gzip.compress(b"", mtime=0), 0)
    zoo.add("no-suffix", gzip.compress(lines(2, 32), mtime=0), 2)
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    zoo.add("two-frames.jsonl.zst", compress(lines(2, 40)) + compress(lines(2, 42)), 4)
    zoo.add("skippable-frame.jsonl.zst", b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + compress(lines(2, 44)), 2)
    zoo.add("truncated.jsonl.zst", _flushed_zstd(5, 46)[:-20], 5, 1)
    zoo.add("lines.jsonl.bz2", bz2.compress(lines(2, 60)) + bz2.compress(lines(1, 62)), 3)
    zoo.add("lines.jsonl.xz", lzma.compress(lines(2, 64)), 2)


def _flushed_gzip(count: int, first: int) -> bytes:
    """Return `count` records that can be decoded whatever comes after them, and one more."""
    engine = zlib.compressobj(wbits=31)
    parts = [engine.compress(lines(1, first + step)) + engine.flush(zlib.Z_FULL_FLUSH) for step in range(count)]
    return b"".join(parts) + engine.compress(lines(1, first + count)) + engine.flush()


def _flushed_zstd(count: int, first: int) -> bytes:
    import zstandard

    out = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as writer:
        for step in range(count + 1):
            writer.write(lines(1, first + step))
            writer.flush(zstandard.FLUSH_BLOCK)
    return out.getvalue()


def _scripts(zoo: _Zoo) -> None:
    texts = {
        "nfc-nfd": ["caf\u00e9 au lait " + document(8), "cafe\u0301 au lait " + document(8)],
        "full-width": ["Ｆｕｌｌ　ｗｉｄｔｈ　Ｌａｔｉｎ ｔｅｘｔ １２３"],
        "right-to-left": ["שלום עולם, זהו טקסט בעברית.", "مرحبا بالعالم، هذا نص عربي.", "\u202egnikcirt\u202c"],
        "emoji": ["family 👨\u200d👩\u200d👧\u200d👦 flag 🇯🇵 skin 👋🏽", "\ufeffleading mark"],
        "chinese": ["这是一个没有空格的中文句子，用来检查分词和去重是否正确。" * 4],
        "japanese": ["吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 4],
        "thai": ["ภาษาไทยไม่มีช่องว่างระหว่างคำและต้องใช้การตัดคำ" * 4],
        "khmer": ["ភាសាខ្មែរមិនមានដកឃ្លារវាងពាក្យទេ" * 4],
    }
    for name, items in texts.items():
        zoo.add(f"scripts/{name}.jsonl", b"".join(line(text) for text in items), len(items))


def _duplicates(zoo: _Zoo, num_identical: int) -> None:
    zoo.add("duplicates/a.jsonl", lines(3, 100), 3)
    zoo.add("duplicates/b.jsonl", lines(3, 101), 3)
    zoo.add("identical.jsonl", line("the very same short text, again and again") * num_identical, num_identical)
    words = [f"word{number}" for number in range(400)]
    chain = [words, [*words[:-12], *[f"b{i}" for i in range(12)]]]
    chain.append([*[f"c{i}" for i in range(12)], *chain[1][12:]])  # near the second, too far from the first
    zoo.add("chain.jsonl", b"".join(line(" ".join(item), id=f"chain-{i}") for i, item in enumerate(chain)), 3)
    shuffled = ["\n\n".join(PARAGRAPHS), "\n\n".join(reversed(PARAGRAPHS))]
    zoo.add("shuffled-paragraphs.jsonl", b"".join(line(text) for text in shuffled), 2)


def _names(zoo: _Zoo) -> None:
    for position, name in enumerate(
        ["with spaces.jsonl", "100%25 sure.jsonl", "名前 ünïcode.jsonl", "[red]brackets*.jsonl"]
    ):
        zoo.add(f"names/{name}", lines(1, 200 + position), 1)
    zoo.add(b"names/not-utf8-\xff.jsonl", line(document(210)), 1)


def _tables(zoo: _Zoo) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": [1, 2, 3], "text": [document(300), None, document(301)], "stars": [1, None, 5]})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    whole = buffer.getvalue()
    zoo.add("table.parquet", whole, 2, 1)
    zoo.add("broken.parquet", whole[: len(whole) // 2], 0, 1)
    zoo.add("not-parquet.parquet", b"not a table at all", 0, 1)
    quoted = document(303).replace('"', '""')
    rows = [
        "id,text,stars",
        "1,plain,5",
        f'2,"{quoted}",4',
        '3,"a ""quote"", and a comma",',
        "4,too,many,columns",
        '5,"open,quote',
        "6,last,1",
    ]
    zoo.add("table.csv", "\n".join(rows).encode(), 4, 2)
    zoo.add("table.tsv", b"id\ttext\n1\tone\n2\ttwo, with a comma\n", 2)


def _whole_files(zoo: _Zoo) -> None:
    page = (
        "<!doctype html><html><head><title>A page &amp; its title</title></head><body><nav><a href='/'>Home</a></nav>"
        f"<main><h1>Harbour</h1><p>{PARAGRAPHS[0]}</p><p>{PARAGRAPHS[1]}</p></main></body></html>"
    )
    zoo.add("pages/page.html", page.encode(), 1)
    zoo.add("pages/latin1.html", page.replace("Harbour", "Café").encode("latin-1"), 1)
    zoo.add("pages/html-without-suffix", page.encode(), 1)
    zoo.add("pages/note.txt", document(400).encode(), 1)
    zoo.add("pages/note.txt.gz", gzip.compress(document(401).encode(), mtime=0), 1)
    zoo.add("pages/empty.txt", b"", 0)
    zoo.add("pages/utf16.txt", document(402).encode("utf-16"), 1)
    zoo.add("pages/latin1.txt", "café".encode("latin-1"), 0, 1)
    zoo.add("pages/readme.md", b"# Title\n\n" + document(403).encode(), 1)
    zoo.add("pages/picture.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", 0, 1)
    records = [{"id": f"a{n}", "text": document(500 + n)} for n in range(3)]
    zoo.add("array.json", json.dumps(records, indent=2).encode(), 3)
    zoo.add("array-with-a-fault.json", b'[{"text": "a, b] c"}, {"text": 5},\n {"text": "d"}]', 2, 1)
    zoo.add("pretty.json", b"\n".join(json.dumps(record, indent=1).encode() for record in records), 3)


_WARC_CONTENT_TYPES = {
    "response": "application/http; msgtype=response",
    "request": "application/http; msgtype=request",
    "warcinfo": "application/warc-fields",
}


def warc_record(kind: str, body: bytes, number: int = 0, **headers: str) -> bytes:
    """Return one WARC record."""
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{kind}-{number}>",
        "WARC-Target-URI": f"https://example.org/{number}",
        "WARC-Date": "2024-01-01T00:00:00Z",
        "Content-Type": _WARC_CONTENT_TYPES.get(kind, "text/plain"),
        **headers,
        "Content-Length": str(len(body)),
    }
    head = "WARC/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return head.encode() + b"\r\n" + body + b"\r\n\r\n"


def http_response(body: bytes, content_type: str = "text/html; charset=utf-8", status: str = "200 OK") -> bytes:
    """Return an HTTP response, as WARC stores it."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n\r\n".encode() + body


def _warc(zoo: _Zoo) -> None:
    page = (
        f"<html><title>T</title><body><main><p>{PARAGRAPHS[2]}</p><p>{PARAGRAPHS[3]}</p></main></body></html>".encode()
    )
    records = [
        warc_record("warcinfo", b"software: none\r\n"),
        warc_record("request", b"GET / HTTP/1.1\r\n\r\n", 1),
        warc_record("response", http_response(page), 1),
        warc_record("response", http_response(b"\x89PNG", "image/png"), 2),
        warc_record("response", http_response(page, status="404 Not Found"), 3),
        warc_record("response", http_response(document(601).encode(), "text/plain"), 4),
    ]
    zoo.add("crawl/pages.warc.gz", b"".join(gzip.compress(record, mtime=0) for record in records), 2)
    zoo.add("crawl/plain.warc", b"".join(records), 2)
    extracted = [warc_record("conversion", document(610 + n).encode(), n) for n in range(3)]
    zoo.add("crawl/pages.wet.gz", gzip.compress(b"".join(extracted), mtime=0), 3)
    zoo.add("crawl/cut.warc", b"".join(extracted)[:-200], 2, 1)
    zoo.add("crawl/noise-between.warc", extracted[0] + b"noise\r\n\r\nmore\r\n" + extracted[1] + extracted[2], 3, 1)
