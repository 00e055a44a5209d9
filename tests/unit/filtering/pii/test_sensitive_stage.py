"""The rule `sensitive_entities` in the stage: report, mask, drop, by source, and what the output says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmctl.artifacts.manifest import Manifest, read_manifest
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.cli.app import run as llmctl
from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.filtering.config import FilterConfig
from llmctl.filtering.stage import run

MAIL, CARD, ID = "john.doe@mail.example.com", "4111-1111-1111-1111", "11010519491231002X"
TEXTS = [
    ("a", "wiki", f"Write to {MAIL} or JOHN.DOE@mail.example.com, card {CARD}, and to x@y.example.org."),
    ("b", "wiki", "Nothing here but plain prose that says nothing about anyone at all."),
    ("c", "court", f"身份证号：{ID}，手机13812345678，（2023）京0105民初12345号"),
    ("d", "social", f"two: {MAIL} {CARD}"),
    ("e", "social", f"one: {MAIL}"),
]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw" / "a.jsonl"
    path.parent.mkdir()
    rows = [json.dumps({"id": name, "source": source, "text": text}) for name, source, text in TEXTS]
    path.write_text("".join(f"{row}\n" for row in rows))
    return path.parent


def filtered(raw: Path, out: Path, workers: int = 1, block_bytes: int = 256_000_000, **values: Any) -> Manifest:
    values = {"preset": ["none"], "read": ReadOptions(block_bytes=block_bytes), **values}
    return run(raw, out, FilterConfig(**values), RunOptions(workers=workers))


def rows(manifest: Manifest, folder: str, *columns: str) -> list[tuple[Any, ...]]:
    table = pa.concat_tables([pq.read_table(path, columns=list(columns)) for path in manifest.paths(f"{folder}/")])
    return [tuple(row[name] for name in columns) for row in table.to_pylist()]


def every_byte_of(root: Path) -> bytes:
    pieces = [path.read_bytes() for path in root.rglob("*") if path.is_file() and path.suffix != ".parquet"]
    pieces += [str(pq.read_table(path).to_pylist()).encode() for path in root.rglob("*.parquet")]
    return b"\n".join(pieces)


def test_mask_replaces_by_type_and_keeps_ids(raw: Path, tmp_path: Path) -> None:
    manifest = filtered(raw, tmp_path / "out", pii="mask")
    assert dict(rows(manifest, "data", "id", "text")) == {
        "a": "Write to <EMAIL> or <EMAIL>, card <PAYMENT_CARD>, and to <EMAIL>.",
        "b": TEXTS[1][2],
        "c": "身份证号：<CN_RESIDENT_ID>，手机<PHONE_CN>，<CASE_NUMBER>",
        "d": "two: <EMAIL> <PAYMENT_CARD>",
        "e": "one: <EMAIL>",
    }
    assert manifest.statistics["records"] == {"in": 5, "kept": 5, "removed": 0, "invalid": 0}
    written = every_byte_of(tmp_path / "out")
    assert not any(value.encode() in written for value in (MAIL, CARD, ID, "13812345678"))


def test_consistent_placeholders_tell_equal_values_apart(raw: Path, tmp_path: Path) -> None:
    manifest = filtered(raw, tmp_path / "out", pii="mask", pii_consistent=True)
    assert dict(rows(manifest, "data", "id", "text"))["a"] == (
        "Write to <EMAIL_1> or <EMAIL_1>, card <PAYMENT_CARD_1>, and to <EMAIL_2>."
    )


def test_report_changes_no_text_and_counts_by_type_source_and_document(raw: Path, tmp_path: Path) -> None:
    manifest = filtered(raw, tmp_path / "out", pii="report")
    assert dict(rows(manifest, "data", "id", "text")) == {name: text for name, _, text in TEXTS}
    assert manifest.statistics["sensitive"] == {
        "documents": {"masked": 0, "searched": 5, "with_entities": 4},
        "by_type": {"case_number": 1, "cn_resident_id": 1, "email": 5, "payment_card": 2, "phone_cn": 1},
        "by_source": {
            "court": {"case_number": 1, "cn_resident_id": 1, "phone_cn": 1},
            "social": {"email": 2, "payment_card": 1},
            "wiki": {"email": 3, "payment_card": 1},
        },
    }
    found = {row[0]: row[1:] for row in rows(manifest, "attributes", "id", "sensitive_entities", "sensitive_types")}
    assert found["a"] == (4.0, '{"email": 3, "payment_card": 1}')
    assert found["b"] == (0.0, None)


def test_drop_removes_with_count_and_limit_and_writes_no_value(raw: Path, tmp_path: Path) -> None:
    rules = {"sensitive_entities": {"max": 1}}
    manifest = filtered(raw, tmp_path / "out", pii="drop", rules=rules)
    assert [name for (name,) in rows(manifest, "data", "id")] == ["b", "e"]
    assert rows(manifest, "removed", "id", "reason", "value", "threshold") == [
        ("a", "sensitive_entities", 4.0, 1.0),
        ("c", "sensitive_entities", 3.0, 1.0),
        ("d", "sensitive_entities", 2.0, 1.0),
    ]
    assert dict(rows(manifest, "removed", "id", "text"))["d"] == "two: <EMAIL> <PAYMENT_CARD>"


def test_sources_have_their_own_mode_and_types(raw: Path, tmp_path: Path) -> None:
    sources = {
        "social": {"sensitive_entities": {"mode": "drop", "types": ["payment_card"]}},
        "court": {"sensitive_entities": "off"},
    }
    manifest = filtered(raw, tmp_path / "out", pii="mask", sources=sources)
    texts = dict(rows(manifest, "data", "id", "text"))
    assert "<EMAIL>" in texts["a"]
    assert (texts["c"], texts["e"]) == (TEXTS[2][2], TEXTS[4][2])
    assert "d" not in texts
    assert manifest.statistics["sensitive"]["documents"] == {"masked": 1, "searched": 4, "with_entities": 2}


def test_the_text_of_documents_removed_for_other_reasons_is_masked_as_it_was_read(raw: Path, tmp_path: Path) -> None:
    rules = {"word_count": {"min": 100}, "line_end_mark": {}}
    manifest = filtered(raw, tmp_path / "out", pii="mask", rules=rules)
    texts = dict(rows(manifest, "removed", "id", "text"))
    assert texts["e"] == "one: <EMAIL>"  # the line rules dropped the line, removed/ has it
    assert texts["a"].startswith("Write to <EMAIL> or <EMAIL>")


@pytest.mark.slow
def test_the_same_bytes_for_any_number_of_workers(raw: Path, tmp_path: Path) -> None:
    lines = (raw / "a.jsonl").read_text()
    for number in range(6):
        (raw / f"b{number}.jsonl").write_text(lines)
    payloads = []
    for workers in (1, 2):
        manifest = filtered(raw, tmp_path / f"out{workers}", workers, 500, pii="mask", pii_consistent=True)
        payloads.append(({record.path: record.sha256 for record in manifest.files}, manifest.statistics))
    assert len(payloads[0][0]) > 10
    assert payloads[0] == payloads[1]


def test_the_command_line(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["filter", str(raw), str(out), "--preset", "none", "--workers", "1"]
    assert llmctl([*arguments, "--pii", "mask", "--pii-types", "contact,payment_card,-phone"]) == 0
    assert "sensitive entities in 4 of 5 documents, masked in 4" in capsys.readouterr().err
    assert read_manifest(out).statistics["sensitive"]["by_type"] == {"email": 5, "payment_card": 2, "phone_cn": 1}
    assert llmctl([*arguments, "--pii-types", "email"]) == 2
    assert llmctl([*arguments, "--pii", "mask", "--pii-types", "emial"]) == 2
    assert "did you mean `email`?" in capsys.readouterr().err


def test_types_that_leave_nothing_are_refused(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leaves no type"):
        filtered(raw, tmp_path / "out", pii="mask", pii_types=["email", "-contact"])
