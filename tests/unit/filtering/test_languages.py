"""Identification of languages: labels, samples, thresholds by language, and what is written where none is known."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.cli.app import run as run_command
from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.filtering import detections
from llmctl.filtering.config import FilterConfig, FilterOptions
from llmctl.filtering.languages import (
    LABELS,
    MIN_LETTERS,
    detect_languages,
    language_codes,
    language_label,
    language_names,
)
from llmctl.filtering.policy import resolve_policies
from llmctl.filtering.stage import run
from llmctl.text.buffers import text_buffers
from llmctl.text.samples import cut_samples

TEXTS = {
    "en": "The old town has a long history, and many of the houses that stand in it were built with local stone.",
    "de": "Die alte Stadt hat eine lange Geschichte, und viele ihrer Häuser wurden aus dem Stein der Gegend gebaut.",
    "fr": "La vieille ville a une longue histoire, et beaucoup de ses maisons ont été bâties avec la pierre du pays.",
    "ru": "У старого города длинная история, и многие его дома были построены из местного камня много лет назад.",
    "zh": "这座古城历史悠久，许多房屋都是用当地的石头建成的。十五世纪时曾经发生过一场大洪水，居民不得不离开家园。",
    "ja": "この古い町には長い歴史があり、多くの家は地元の石で建てられました。春には洪水がありました。",
    "ar": "للمدينة القديمة تاريخ طويل، وقد بنيت كثير من بيوتها من الحجر المحلي قبل سنوات عديدة.",
    "hi": "पुराने शहर का इतिहास लंबा है, और उसके कई घर स्थानीय पत्थर से बनाए गए थे।",
    "th": "เมืองเก่ามีประวัติศาสตร์อันยาวนาน และบ้านหลายหลังสร้างขึ้นจากหินในท้องถิ่น",
}


def names(texts: list[str]) -> list[str | None]:
    return language_names(detect_languages(pa.array(texts, pa.large_string()))["detected_language"]).to_pylist()


def test_labels_are_those_of_the_model() -> None:
    assert len(LABELS) == 176
    assert list(LABELS) == sorted(set(LABELS))
    codes = np.array([-1, 0, 175], np.int16)
    assert language_codes(language_names(codes)).tolist() == codes.tolist()


def test_languages_of_many_scripts_are_told_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert names(list(TEXTS.values())) == list(TEXTS)
    assert names([TEXTS["de"].upper(), TEXTS["ru"].upper(), TEXTS["en"].upper()]) == ["de", "ru", "en"]


def test_a_text_of_few_letters_is_not_judged() -> None:
    enough = TEXTS["en"].replace(" ", "")[:MIN_LETTERS]
    assert names([enough[:-1] + "12345678901234567890", ""]) == [None, None]
    assert names([enough])[0] is not None
    found = detect_languages(pa.array(["short", "1 2 3"], pa.large_string()))
    assert np.isnan(found["language_score"]).all()


def test_only_the_wanted_rows_are_looked_at() -> None:
    texts = pa.array([TEXTS["en"], TEXTS["de"], TEXTS["fr"]], pa.large_string())
    found = detect_languages(texts, np.array([False, True, False]))
    assert language_names(found["detected_language"]).to_pylist() == [None, "de", None]


@pytest.mark.parametrize("size", [60, 100, 600])
def test_samples_are_whole_characters_from_three_places(size: int) -> None:
    text = "首" * 200 + TEXTS["zh"] * 20 + "末" * 200
    data, offsets, letters = cut_samples(*text_buffers(pa.array(["a\nb", text, ""], pa.large_string())), size)
    samples = [bytes(data[offsets[n] : offsets[n + 1]]).decode() for n in range(3)]
    assert samples[0] == "a b"
    assert samples[2] == ""
    assert samples[1].startswith("首")
    assert samples[1].endswith("末")
    assert samples[1].count(" ") == 2
    assert len(samples[1].encode()) <= size + 16
    assert letters.tolist() == [2, sum(char.isalpha() for char in samples[1]), 0]


def test_tags_are_understood_and_unknown_ones_refused() -> None:
    assert [language_label(tag) for tag in ("en-US", "zh_Hans", "nb", "PT")] == ["en", "zh", "no", "pt"]
    with pytest.raises(UserError, match="unknown language"):
        language_label("klingon")
    with pytest.raises(UserError, match=r"in quotes|tag such as"):
        language_label(False)  # type: ignore[arg-type]  # what YAML makes of `no`
    with pytest.raises(UserError, match="from 0 to 1"):
        resolve_policies(FilterConfig(rules={"language": {"thresholds": {"en": 65}}}))


# -- in the stage


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def table(manifest: Manifest, folder: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in manifest.paths(f"{folder}/")])


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    records: list[dict[str, Any]] = [{"id": lang, "text": text, "source": "web"} for lang, text in TEXTS.items()]
    records.append({"id": "liar", "text": TEXTS["fr"], "source": "web", "lang": "en"})
    records.append({"id": "short", "text": "Bonjour", "source": "web", "lang": ""})
    return write(tmp_path / "in.jsonl", records)


def config(**values: Any) -> FilterConfig:
    return FilterConfig(**{"preset": ["none"], "read": ReadOptions(block_bytes=1024), **values})


def test_listed_languages_stay_whatever_the_records_say(mixed: Path, tmp_path: Path) -> None:
    manifest = run(mixed, tmp_path / "out", config(languages=["en,zh", "ja"]), FilterOptions(workers=1))
    assert table(manifest, "data")["id"].to_pylist() == ["en", "zh", "ja", "short"]
    removed = {row["id"]: row for row in table(manifest, "removed").to_pylist()}
    assert (removed["liar"]["reason"], removed["liar"]["value"], removed["liar"]["threshold"]) == ("language", 0, 0.5)
    assert removed["de"]["lang"] == "de"
    attributes = {row["id"]: row for row in table(manifest, "attributes").to_pylist()}
    assert (attributes["liar"]["lang"], attributes["liar"]["detected_language"]) == ("en", "fr")
    assert (attributes["short"]["detected_language"], attributes["short"]["language_score"]) == (None, None)


def test_thresholds_by_language_and_source(mixed: Path, tmp_path: Path) -> None:
    rules = {"language": {"languages": ["en", "de", "fr"], "min": 0.1, "thresholds": {"de-AT": 1.0}}}
    manifest = run(mixed, tmp_path / "out", config(rules=rules), FilterOptions(workers=1))
    assert set(table(manifest, "data")["id"].to_pylist()) == {"en", "fr", "liar", "short"}
    german = next(row for row in table(manifest, "removed").to_pylist() if row["id"] == "de")
    assert german["threshold"] == 1.0
    assert 0.5 < german["value"] < 1
    lenient = config(rules=rules, sources={"web": {"language": {"thresholds": {}, "languages": []}}})
    manifest = run(mixed, tmp_path / "lenient", lenient, FilterOptions(workers=1))
    assert manifest.statistics["records"]["kept"] == 11


def test_records_without_a_language_get_the_detected_one(mixed: Path, tmp_path: Path) -> None:
    manifest = run(mixed, tmp_path / "out", config(), FilterOptions(workers=1))
    assert dict(zip(*[table(manifest, "data")[name].to_pylist() for name in ("id", "lang")], strict=True)) == {
        **{lang: lang for lang in TEXTS},
        "liar": "en",
        "short": None,
    }
    assert manifest.statistics["languages"] == {"declared": 1, "detected": 9, "unknown": 1}
    english = next(row for row in manifest.statistics["by_source"] if row["lang"] == "en")
    assert (english["in"], english["lang_detected"]) == (2, 1)
    off = run(mixed, tmp_path / "off", config(detect_language="off"), FilterOptions(workers=1))
    assert off.statistics["languages"] == {"declared": 1, "detected": 0, "unknown": 10}
    assert "detected_language" not in table(off, "attributes").column_names


def test_workers_and_stored_scores_change_no_byte(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(languages=["en"])
    one = run(mixed, tmp_path / "one", chosen, RunOptions(workers=1))
    two = run(mixed, tmp_path / "two", chosen, RunOptions(workers=2))
    assert (tmp_path / "one/manifest.json").read_bytes() == (tmp_path / "two/manifest.json").read_bytes()
    assert len(one.paths("data/")) > 1
    other = config(rules={"language": {"languages": ["ru", "de"], "min": 0.3}})
    measured = run(mixed, tmp_path / "measured", other, FilterOptions(workers=1))

    def refuse(*_: object) -> None:
        raise AssertionError("languages are identified again")

    monkeypatch.setattr(detections.languages, "detect_languages", refuse)
    reused = run(mixed, tmp_path / "reused", other, FilterOptions(workers=1, reuse_scores=str(tmp_path / "one")))
    assert [file.sha256 for file in reused.files] == [file.sha256 for file in measured.files]
    assert len(two.files) == len(one.files)


def test_the_command_line(mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["filter", str(mixed), str(tmp_path / "out"), "--preset", "none", "--workers", "1"]
    assert run_command([*command, "--languages", "englisch"]) == 2
    assert "unknown language `englisch`" in capsys.readouterr().err
    assert run_command([*command, "--languages", "en,zh"]) == 0
    assert "9 were identified" in capsys.readouterr().err
    assert run_command(["filter", str(tmp_path / "out"), "--explain", "liar"]) == 0
    shown = capsys.readouterr().out
    assert "detected_language" in shown
    assert "language" in shown
