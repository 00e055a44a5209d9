"""Write the demonstration's raw input: the corpus that ships, made as messy as real crawls are.

The same texts in the formats that people have (JSON lines plain, gzip with several members, zstandard with several
frames, Parquet, CSV, plain text, Markdown, HTML, WARC), with exact copies, edited copies, re-ordered copies,
advertisements, mojibake, and broken records. Everything is a function of the shipped corpus and fixed seeds.
"""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
Record = dict[str, Any]

# Written for this project: what a quality filter must see.
_ADVERTISEMENTS = (
    "BUY NOW!!! CHEAP WATCHES {n} $$$ BEST PRICE $$$ CLICK HERE >>> www.example.com/{n} <<< CALL NOW!!! FREE FREE FREE",
    "# # # # win {n} coins # # # # click # # # # win # # # # click # # # # win # # # # click # # # #",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore {n}.",
    "cookie policy | privacy policy | terms of use | cookie policy | privacy policy | terms of use | {n}",
    "Read more... Read more... Read more... Read more... Read more... Read more... Read more... {n}",
    "Ã©tÃ© Ã  la plage â€“ l'annÃ©e {n} â€™ Ã©tÃ© Ã  la plage â€“ l'annÃ©e Ã©tÃ© Ã  la plage",
)


def read_corpus(name: str) -> list[Record]:
    """Return the records of one file of the shipped corpus."""
    import zstandard

    data = (CORPUS / f"{name}.jsonl.zst").read_bytes()
    text = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read().decode()
    return [json.loads(line) for line in text.split("\n") if line]


def _lines(records: Sequence[Record]) -> bytes:
    kept = ({key: record[key] for key in ("id", "text", "lang", "licence") if key in record} for record in records)
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in kept)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def write_raw(folder: Path) -> None:
    """Write the raw input below `folder`."""
    _write_docs(folder / "docs")
    _write_dictionary(folder / "dictionary")
    _write_books(folder / "books")
    _write(folder / "code" / "standard-library.jsonl", _lines(read_corpus("code-CPython")))
    _write_languages(folder)
    _write_web(folder / "web")
    _write_crawl(folder / "crawl")


def _write_docs(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    postgresql = _lines(read_corpus("en_docs-postgresql-doc-15"))
    broken = (
        b'{"id": "cut-off", "text": "This line ends in the mid\n[1, 2, 3]\n{"id": "no-text", "body": "no text field"}\n'
    )
    bad_bytes = b'{"id": "bytes", "text": "caf\xe9"}\n{"id": "null", "text": null}\n\n'
    _write(folder / "postgresql.jsonl", b"\xef\xbb\xbf" + postgresql + broken + bad_bytes)
    python = read_corpus("en_docs-python3.11-doc")
    _write(folder / "python.jsonl.gz", _gzip(_lines(python[:30])) + _gzip(_lines(python[30:])))
    apache = read_corpus("en_docs-apache2-doc")
    frames = zstandard.ZstdCompressor(level=3)
    _write(folder / "apache.jsonl.zst", frames.compress(_lines(apache[:14])) + frames.compress(_lines(apache[14:])))
    office = [
        {key: record[key] for key in ("id", "text", "lang", "licence")}
        for record in read_corpus("en_docs-libreoffice-help-en-us")
    ]
    pq.write_table(pa.Table.from_pylist(office), folder / "libreoffice.parquet", compression="zstd")


def _write_dictionary(folder: Path) -> None:
    table = io.StringIO()
    writer = csv.DictWriter(table, ["id", "text", "lang", "licence"], extrasaction="ignore")
    writer.writeheader()
    writer.writerows(read_corpus("en_dict-dict-devil"))
    _write(folder / "devil.csv", table.getvalue().encode())
    for record in read_corpus("en_dict-dict-jargon"):
        _write(folder / "jargon" / f"{record['id']}.txt", record["text"].encode())


def _write_books(folder: Path) -> None:
    for position, record in enumerate(read_corpus("en_books-sword-text-web")):
        text = f"# Chapter {position + 1}\n\n{record['text']}\n"
        _write(folder / f"chapter-{position + 1:03d}.md", text.encode())


def _write_languages(folder: Path) -> None:
    for name, target in (
        ("zh-libreoffice-help-zh-cn", "chinese/help.jsonl"),
        ("multi-libreoffice-help-de", "german/help.jsonl"),
        ("multi-libreoffice-help-ja", "japanese/help.jsonl"),
        ("multi-apache2-doc", "translations/apache.jsonl"),
    ):
        _write(folder / target, _lines(read_corpus(name)))


def _page(record: Record) -> str:
    paragraphs = "".join(f"<p>{html.escape(part)}</p>\n" for part in record["text"].split("\n\n") if part.strip())
    navigation = "<nav><ul>" + "".join(f"<li><a href='#{n}'>Section {n}</a></li>" for n in range(8)) + "</ul></nav>"
    return (
        f"<!DOCTYPE html>\n<html lang='en'><head><title>{html.escape(record['id'])}</title>"
        f"<script>var tracking = 1;</script></head>\n<body>{navigation}<main>\n{paragraphs}</main>"
        f"<footer>Share this page</footer></body></html>\n"
    )


def _warc_record(url: str, number: int, page: bytes) -> bytes:
    """Return one `response` record of WARC 1.1 (ISO 28500)."""
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + page
    headers = (
        "WARC/1.1\r\nWARC-Type: response\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-{number:012d}>\r\n"
        f"WARC-Date: 2026-01-01T00:00:00Z\r\nWARC-Target-URI: {url}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return headers.encode() + body + b"\r\n\r\n"


def _write_web(folder: Path) -> None:
    records = read_corpus("web_docs_html-python3.11-doc")
    for record in records[:5]:
        _write(folder / f"{record['id']}.html", _page(record).encode())
    archive = b"".join(
        _gzip(_warc_record(f"https://example.com/{record['id']}", number, _page(record).encode()))
        for number, record in enumerate(records[5:])
    )
    _write(folder / "pages.warc.gz", archive)


def _edited(text: str, random_numbers: random.Random) -> str:
    """Return a copy with one word in four hundred changed."""
    words = text.split(" ")
    for _ in range(max(1, len(words) // 400)):
        words[random_numbers.randrange(len(words))] = "edited"
    return " ".join(words)


def _reordered(text: str, random_numbers: random.Random) -> str:
    paragraphs = text.split("\n\n")
    random_numbers.shuffle(paragraphs)
    return "\n\n".join(paragraphs)


def _write_crawl(folder: Path) -> None:
    """Write what a crawl adds: copies of pages seen elsewhere, advertisements, and a file that was cut off."""
    random_numbers = random.Random(7)
    originals = read_corpus("en_docs-postgresql-doc-15") + read_corpus("en_docs-libreoffice-help-en-us")
    long_texts = [record for record in originals if len(record["text"]) > 3000]
    records: list[Record] = []
    for kind, change in (
        ("copy", lambda text: text),
        ("edit", lambda text: _edited(text, random_numbers)),
        ("order", lambda text: _reordered(text, random_numbers)),
    ):
        for record in random_numbers.sample(long_texts, 25):
            records.append({"id": f"{kind}-{record['id']}", "text": change(record["text"]), "lang": "en"})
    for n in range(120):
        template = _ADVERTISEMENTS[n % len(_ADVERTISEMENTS)]
        lines = [template.format(n=random_numbers.randrange(10**6)) for _ in range(random_numbers.randrange(1, 9))]
        records.append({"id": f"advertisement-{n:03d}", "text": "\n".join(lines), "lang": "en"})
    random_numbers.shuffle(records)
    _write(folder / "mirror.jsonl", _lines(records[:150]))
    compressed = _gzip(_lines(records[150:]))
    _write(folder / "cut-off.jsonl.gz", compressed[: len(compressed) * 2 // 3])
