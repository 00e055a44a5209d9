"""The whole stage: files, counts, resumption, and the same bytes for any way of running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmctl.artifacts.kinds import documents_schema, removed_schema
from llmctl.artifacts.manifest import Manifest, read_manifest
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.filtering import block as block_module
from llmctl.filtering import stage
from llmctl.filtering.config import FilterConfig, FilterOptions
from llmctl.filtering.stage import run

PROSE = (
    "Number {n}: the old town has a long history, and many of the houses that stand in it were built with local stone. "
    "A flood came in the spring, so the people had to leave, but most of them did return before winter to rebuild it.\n"
    "Nobody knows when the second bridge was finished. Maps from the seventeenth century do not show it at all."
)


def write_jsonl(path: Path, records: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two files of 60 documents each: every third one is too short, one line in each is broken."""
    folder = tmp_path / "raw"
    for name, source in (("a.jsonl", "wiki"), ("sub/b.jsonl", "social")):
        records: list[Any] = [
            {
                "id": f"{source}-{n}",
                "text": "Too short." if n % 3 == 0 else PROSE.format(n=n),
                "source": source,
                "lang": "en" if n % 2 else None,
                "extra": n,
            }
            for n in range(60)
        ]
        records.insert(7, '{"id": "broken", "text": "no end')
        write_jsonl(folder / name, records)
    return folder


def config(**values: Any) -> FilterConfig:
    return FilterConfig(**{"read": ReadOptions(block_bytes=4000), **values})


def options(**values: Any) -> RunOptions:
    return RunOptions(**{"workers": 1, **values})


def table(manifest: Manifest, folder: str) -> pa.Table:
    paths = manifest.paths(f"{folder}/")
    return pa.concat_tables([pq.read_table(path) for path in paths])


def payload(manifest: Manifest) -> dict[str, str]:
    return {record.path: record.sha256 for record in manifest.files}


def test_every_record_is_kept_removed_or_invalid(raw: Path, tmp_path: Path) -> None:
    manifest = run(raw, tmp_path / "out", config(), options())
    assert manifest.statistics["records"] == {"in": 122, "kept": 80, "removed": 40, "invalid": 2}
    assert manifest.statistics["by_reason"] == {"word_count": 40}
    by_file = {row["path"]: row for row in manifest.statistics["by_file"]}
    assert by_file["a.jsonl"] == {"path": "a.jsonl", "in": 61, "kept": 40, "removed": 20, "invalid": 1}
    by_source = {(row["source"], row["lang"]): row for row in manifest.statistics["by_source"]}
    # Half of the records name their language; of the others, those long enough have it identified.
    assert (by_source["wiki", "en"]["in"], by_source["wiki", "en"]["lang_detected"]) == (50, 20)
    assert (by_source["wiki", "unknown"]["in"], by_source["wiki", "unknown"]["kept"]) == (10, 0)
    assert manifest.statistics["languages"] == {"declared": 60, "detected": 40, "unknown": 20}

    data, removed = table(manifest, "data"), table(manifest, "removed")
    assert data.schema.equals(documents_schema())
    assert removed.schema.equals(removed_schema())
    assert data.num_rows == 80
    ids = set(data["id"].to_pylist()) | set(removed["id"].to_pylist())
    assert ids == {f"{source}-{n}" for source in ("wiki", "social") for n in range(60)}
    row = data.slice(0, 1).to_pylist()[0]
    assert (row["id"], row["text"], row["source"], row["lang"]) == ("wiki-1", PROSE.format(n=1), "wiki", "en")
    assert json.loads(row["metadata"]) == {"extra": 1}
    invalid = [json.loads(line) for path in manifest.paths("invalid/") for line in path.read_text().splitlines()]
    assert sorted((row["file"], row["line"] is not None or row["offset"] is not None) for row in invalid) == [
        ("a.jsonl", True),
        ("sub/b.jsonl", True),
    ]


def test_removed_documents_carry_every_reason_with_value_and_threshold(raw: Path, tmp_path: Path) -> None:
    manifest = run(raw, tmp_path / "out", config(preset=["gopher"]), options())
    row = table(manifest, "removed").slice(0, 1).to_pylist()[0]
    assert (row["id"], row["reason"], row["value"], row["threshold"]) == ("wiki-0", "word_count", 2.0, 50.0)
    assert json.loads(row["all_reasons"]) == [
        {"reason": "word_count", "value": 2, "threshold": 50},
        {"reason": "stop_words", "value": 0, "threshold": 2},
    ]
    assert (row["text"], row["source"], row["lang"]) == ("Too short.", "wiki", None)
    assert manifest.statistics["failed_by_rule"] == {"stop_words": 40, "word_count": 40}


def test_the_text_of_removed_documents_can_be_left_out(raw: Path, tmp_path: Path) -> None:
    manifest = run(raw, tmp_path / "out", config(keep_text_of_removed=False, attributes=False), options())
    assert table(manifest, "removed")["text"].null_count == 40
    assert not manifest.paths("attributes/")


def test_attributes_hold_every_statistic_of_every_document(raw: Path, tmp_path: Path) -> None:
    manifest = run(raw, tmp_path / "out", config(), options())
    attributes = table(manifest, "attributes")
    assert attributes.num_rows == 120
    first = attributes.slice(0, 2).to_pylist()
    assert [(row["id"], row["num_words"], row["num_chars"]) for row in first] == [
        ("wiki-0", 2, 10),
        ("wiki-1", len(PROSE.split()), len(PROSE.format(n=1))),
    ]
    assert "duplicate_10gram_chars" in attributes.column_names


def test_sources_have_their_own_policy(raw: Path, tmp_path: Path) -> None:
    chosen = config(sources={"social": {"word_count": {"min": 1}}, "wi*": {"word_count": {"min": 1000}}})
    manifest = run(raw, tmp_path / "out", chosen, options())
    kept = Counter(table(manifest, "data")["source"].to_pylist())
    assert kept == {"social": 60}
    assert manifest.statistics["policy_by_source"] == {"social": "social", "wiki": "wi*"}
    assert manifest.statistics["policy"]["social"]["word_count"]["min"] == 1


def test_line_rules_change_the_text_and_are_counted(tmp_path: Path) -> None:
    page = "Home | About\n" + PROSE.format(n=1) + "[2]\nPlease enable JavaScript to read it."
    write_jsonl(tmp_path / "in.jsonl", [{"text": page}, {"text": PROSE.format(n=2)}, {"text": "Menu\nSearch"}])
    manifest = run(tmp_path / "in.jsonl", tmp_path / "out", FilterConfig(preset=["c4"]), options())
    assert table(manifest, "data")["text"].to_pylist() == [PROSE.format(n=1), PROSE.format(n=2)]
    assert manifest.statistics["lines"] == {
        "changed_documents": 1,
        "citation_marks": 1,
        "line_end_mark": 1,
        "line_javascript": 1,
    }
    removed = table(manifest, "removed").to_pylist()
    assert [(row["reason"], row["text"]) for row in removed] == [("sentences", "Menu\nSearch")]
    attributes = table(manifest, "attributes").to_pylist()[0]
    assert attributes["edited.num_sentences"] == 4
    assert attributes["lines.line_end_mark"] == 1
    groups = manifest.statistics["by_source"][0]
    assert groups["bytes_kept"] == 2 * len(PROSE.format(n=1))


def test_statistics_after_the_line_rules_are_those_of_the_edited_text(tmp_path: Path) -> None:
    texts = [PROSE.format(n=n) + ("\nMenu" * (n % 3)) for n in range(9)] + ["", "Menu"]
    write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    rules = {"line_end_mark": True, "short_lines": True, "sentences": True, "duplicate_lines": True}
    edited = run(tmp_path / "in.jsonl", tmp_path / "out", FilterConfig(preset=["none"], rules=rules), options())
    attributes = table(edited, "attributes").to_pylist()
    for text, row in zip(texts, attributes, strict=True):
        lines = [line for line in text.split("\n") if line.endswith(".")]
        assert row["edited.num_lines"] == len(lines)
        assert row["edited.num_chars"] == len("\n".join(lines))
        assert row["num_lines"] == len([line for line in text.split("\n") if line])


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_writes_the_same_bytes(raw: Path, tmp_path: Path, workers: int) -> None:
    chosen = config(preset=["fineweb"])
    first = run(raw, tmp_path / "one", chosen, options())
    second = run(raw, tmp_path / "many", chosen, options(workers=workers, overwrite=True))
    assert len(first.paths("data/")) > 5
    assert payload(first) == payload(second)
    assert (tmp_path / "one/manifest.json").read_bytes() == (tmp_path / "many/manifest.json").read_bytes()


def test_a_second_run_is_up_to_date_and_another_configuration_refused(raw: Path, tmp_path: Path) -> None:
    first = run(raw, tmp_path / "out", config(), options())
    stamp = (tmp_path / "out/manifest.json").stat().st_mtime_ns
    assert payload(run(raw, tmp_path / "out", config(), options())) == payload(first)
    assert (tmp_path / "out/manifest.json").stat().st_mtime_ns == stamp
    with pytest.raises(UserError, match="another configuration"):
        run(raw, tmp_path / "out", config(rules={"word_count": {"min": 1}}), options())


def test_a_run_that_broke_off_goes_on_where_it_was(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(raw, tmp_path / "whole", config(), options())
    done: list[str] = []

    def failing(unit: Any, context: Any) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(unit.name)
        return block_module.filter_block(unit, context)

    monkeypatch.setattr(stage, "filter_block", failing)
    with pytest.raises(KeyboardInterrupt):
        run(raw, tmp_path / "out", config(), options())
    assert not (tmp_path / "out/manifest.json").exists()
    again: list[str] = []

    def counting(unit: Any, context: Any) -> Any:
        again.append(unit.name)
        return block_module.filter_block(unit, context)

    monkeypatch.setattr(stage, "filter_block", counting)
    resumed = run(raw, tmp_path / "out", config(), options())
    assert not set(done) & set(again)
    assert payload(resumed) == payload(whole)
    assert resumed.statistics == whole.statistics


def test_a_block_whose_content_changed_is_done_again(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(unit: Any, context: Any) -> Any:
        if unit.name.startswith("00001"):
            raise KeyboardInterrupt
        return block_module.filter_block(unit, context)

    monkeypatch.setattr(stage, "filter_block", failing)
    with pytest.raises(KeyboardInterrupt):
        run(raw, tmp_path / "out", config(), options())
    text = (raw / "a.jsonl").read_text()
    (raw / "a.jsonl").write_text(text.replace("Number 1:", "Nombre 1:"))
    monkeypatch.setattr(stage, "filter_block", block_module.filter_block)
    manifest = run(raw, tmp_path / "out", config(), options())
    assert table(manifest, "data")["text"][0].as_py().startswith("Nombre 1:")


@pytest.mark.faults
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(raw: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "llmctl",
        "filter",
        str(raw),
        "OUT",
        "--workers",
        "1",
        "--set",
        "read.block_bytes=1100",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(out: Path, seed: str) -> subprocess.Popen[bytes]:
        filled = [str(out) if part == "OUT" else part for part in command]
        return subprocess.Popen(
            filled, env={**environment, "PYTHONHASHSEED": seed}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    assert start(tmp_path / "whole", "0").wait(120) == 0
    process = start(tmp_path / "killed", "1")
    units = tmp_path / "killed/_state/units"
    while process.poll() is None and not (units.is_dir() and len(list(units.iterdir())) >= 2):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    again = start(tmp_path / "killed", "2")
    assert again.wait(120) == 0
    assert (tmp_path / "killed/manifest.json").read_bytes() == (tmp_path / "whole/manifest.json").read_bytes()
    assert not read_manifest(tmp_path / "killed").damaged_files()
    assert not list((tmp_path / "killed").rglob("*.tmp-*"))


def test_filter_reads_its_own_output(raw: Path, tmp_path: Path) -> None:
    first = run(raw, tmp_path / "once", config(), options())
    second = run(tmp_path / "once", tmp_path / "twice", config(rules={"word_count": {"max": 75}}), options())
    assert second.statistics["records"]["in"] == first.statistics["records"]["kept"] == 80
    assert second.statistics["records"]["invalid"] == 0


@pytest.mark.parametrize("content", ["", "\n\n\n"])
def test_an_input_without_records_gives_an_empty_output(tmp_path: Path, content: str) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/empty.jsonl").write_text(content)
    manifest = run(tmp_path / "raw", tmp_path / "out", FilterConfig(), options())
    assert manifest.statistics["records"] == {"in": 0, "kept": 0, "removed": 0, "invalid": 0}
    assert table(manifest, "data").schema.equals(documents_schema())
    again = run(tmp_path / "out", tmp_path / "again", FilterConfig(), options())
    assert again.statistics["records"]["in"] == 0


def test_nothing_kept_is_a_valid_output_with_an_alarm(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = run(raw, tmp_path / "out", config(rules={"word_count": {"min": 10_000}}), options())
    assert manifest.statistics["records"]["kept"] == 0
    assert table(manifest, "data").num_rows == 0
    talk = capsys.readouterr().err
    assert "`wiki` is nearly wiped out" in talk
    assert "`social` is nearly wiped out" in talk


def test_a_dry_run_writes_nothing(raw: Path, tmp_path: Path) -> None:
    manifest = run(raw, tmp_path / "out", config(), options(dry_run=True))
    assert manifest.statistics["plan"]["files"] == 2
    assert manifest.statistics["plan"]["blocks"] > 5
    assert not (tmp_path / "out").exists()


# -- scores of an earlier run


def reusing(folder: Path) -> FilterOptions:
    return FilterOptions(workers=1, reuse_scores=str(folder))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the batches whose statistics are computed."""
    calls: list[int] = []
    original = block_module.document_statistics

    def counting(*arguments: Any) -> Any:
        calls.append(1)
        return original(*arguments)

    monkeypatch.setattr(block_module, "document_statistics", counting)
    return calls


@pytest.mark.parametrize("preset", ["gopher", "fineweb"])
def test_other_limits_from_stored_scores_give_the_same_bytes_as_measuring_again(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    run(raw, tmp_path / "first", config(preset=[preset]), options())
    other = config(preset=[preset], rules={"word_count": {"min": 1}, "stop_words": {"min": 1}})
    measured = run(raw, tmp_path / "measured", other, options())
    calls = counted(monkeypatch)
    reused = run(raw, tmp_path / "reused", other, reusing(tmp_path / "first"))
    assert payload(reused) == payload(measured)
    # The texts that the line rules leave are measured again; the original ones never.
    assert len(calls) == (0 if preset == "gopher" else len(reused.paths("data/")))


def test_scores_of_changed_blocks_are_measured_again(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(raw, tmp_path / "first", config(), options())
    text = (raw / "a.jsonl").read_text()
    (raw / "a.jsonl").write_text(text.replace(PROSE.format(n=1)[:40], "Much shorter now. Much shorter now! Yes!!"[:40]))
    measured = run(raw, tmp_path / "measured", config(), options())
    calls = counted(monkeypatch)
    reused = run(raw, tmp_path / "reused", config(), reusing(tmp_path / "first"))
    assert payload(reused) == payload(measured)
    assert 0 < len(calls) < len(reused.paths("data/"))


def test_scores_with_other_word_lists_or_too_few_statistics_are_measured_again(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(raw, tmp_path / "first", config(preset=["gopher"]), options())
    run(raw, tmp_path / "few", config(preset=["none"], rules={"word_count": True}), options())
    other = config(preset=["gopher"], rules={"stop_words": {"words": ["town", "bridge"]}})
    measured = run(raw, tmp_path / "measured", other, options())
    calls = counted(monkeypatch)
    for folder in ("first", "few"):
        reused = run(raw, tmp_path / f"from-{folder}", other, reusing(tmp_path / folder))
        assert payload(reused) == payload(measured)
    assert len(calls) == 2 * len(measured.paths("data/"))


def test_scores_that_cannot_be_used_are_refused(raw: Path, tmp_path: Path) -> None:
    run(raw, tmp_path / "first", config(), options())
    run(raw, tmp_path / "none", config(attributes=False), options())
    with pytest.raises(UserError, match="no attributes/"):
        run(raw, tmp_path / "out", config(), reusing(tmp_path / "none"))
    with pytest.raises(UserError, match=r"read\.text_field"):
        chosen = FilterConfig(read=ReadOptions(block_bytes=4000, text_field="extra"))
        run(raw, tmp_path / "out", chosen, reusing(tmp_path / "first"))
    with pytest.raises(UserError, match=r"manifest\.json"):
        run(raw, tmp_path / "out", config(), reusing(raw))
    assert not (tmp_path / "out").exists()
