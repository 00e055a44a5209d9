"""Classifiers that users train: their worth on real labels, calibration, thresholds, and their use in filter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmctl.artifacts.manifest import Manifest, read_manifest
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.cli.app import run as run_command
from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.filtering import detections
from llmctl.filtering.classifiers.config import ClassifierConfig
from llmctl.filtering.classifiers.model import read_classifier
from llmctl.filtering.classifiers.stage import run as train
from llmctl.filtering.classifiers.training import choose_threshold, reliability
from llmctl.filtering.config import FilterConfig, FilterOptions
from llmctl.filtering.stage import run as filter_run
from llmctl.text.buffers import text_buffers
from llmctl.text.grams import document_features, score_documents

GOOD = (
    "The {n}th report describes how the river was measured over a year and what the engineers found at station {n}.",
    "In chapter {n} the author explains the grammar of the old dialect with examples from letters and songs.",
    "第{n}条 县级以上人民政府应当加强对本行政区域内水资源保护工作的领导，并将其纳入国民经济和社会发展规划。",
)
BAD = (
    "WIN a free prize now!!! Call {n}00 555 or click http://win{n}.example to claim your cash, offer ends soon",
    "Cheap pills no prescription!!! Order {n} packs today and get {n} free, limited offer, click here now",
    "恭喜您中奖{n}万元！！！立即点击链接领取奖金，名额有限，加微信{n}免费领取优惠券，先到先得！",
)


def texts(kind: tuple[str, ...], count: int) -> list[str]:
    return [kind[n % len(kind)].format(n=n) for n in range(count)]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def rows(kind: tuple[str, ...], count: int, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"{fields.get('label', '')}{n}", "text": text, **fields} for n, text in enumerate(texts(kind, count))
    ]


@pytest.fixture(scope="module")
def spam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier from a good and a bad folder."""
    root = tmp_path_factory.mktemp("spam")
    write(root / "good/a.jsonl", rows(GOOD, 150))
    write(root / "bad/b.jsonl", rows(BAD, 90))
    config = ClassifierConfig(features=14)
    train(root / "model", config, RunOptions(workers=1), good=root / "good", bad=root / "bad")
    return root / "model"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "label", "least"), [("sms_spam.jsonl.gz", "spam", 0.99), ("toxicity_zh.jsonl.zst", "offensive", 0.93)]
)
def test_area_under_the_curve_on_real_labels(
    shared_data: Path, tmp_path: Path, file: str, label: str, least: float
) -> None:
    config = ClassifierConfig(positive=label)
    manifest = train(tmp_path / "out", config, RunOptions(workers=1), data=shared_data / "labels" / file)
    report = manifest.statistics["report"]
    assert len(report["auc"]["by_split"]) == 5
    assert report["auc"]["mean"] >= least
    assert report["reliability"]["error"] < 0.03
    assert report["threshold"]["precision"] >= 0.95
    assert report["threshold"]["recall"] > 0.5


# -- features


def test_features_of_any_script_and_their_sums_agree() -> None:
    column = pa.array(["Hello  World 12", "hello world 34", "这座古城历史悠久", "", " \n "], pa.large_string())
    features, ends = document_features(*text_buffers(column), 16)
    parts = [sorted(part.tolist()) for part in np.split(features, ends)[:5]]
    assert parts[0] == parts[1], "case, white space and the values of digits do not count"
    # 8 characters: 8 of one, then 9, 8, 7, 6 with the edges; words: 8 and 7 pairs
    assert len(parts[2]) == 8 + 9 + 8 + 7 + 6 + 8 + 7
    assert parts[3] == parts[4] == []
    weights = np.random.default_rng(0).normal(size=1 << 16).astype(np.float32)
    sums, counts = score_documents(*text_buffers(column), weights)
    assert counts.tolist() == [len(part) for part in parts]
    for part, total in zip(parts, sums, strict=True):
        assert total == pytest.approx(weights[np.array(part, np.int64)].astype(np.float64).sum(), abs=1e-9)


def test_only_the_beginning_of_a_long_document_is_looked_at() -> None:
    column = pa.array(["ab" * 500, "ab" * 50], pa.large_string())
    _, counts = score_documents(*text_buffers(column), np.zeros(4, np.float32), max_chars=50)
    assert counts[0] == counts[1]


# -- training


def test_a_classifier_of_two_folders_tells_them_apart(spam: Path) -> None:
    report = read_manifest(spam, kinds=("classifier",)).statistics["report"]
    assert report["auc"]["mean"] == 1.0
    assert (report["examples"]["positive"], report["examples"]["rest"]) == (90, 150)
    assert not list(spam.rglob("*.pkl"))
    assert {path.name for path in spam.iterdir()} >= {"weights.safetensors", "classifier.json"}
    model = read_classifier(str(spam), "x")
    found = model.probabilities(pa.array([GOOD[0].format(n=7777), BAD[0].format(n=7777), BAD[2].format(n=9), ""]))
    assert found[0] < 0.2 < 0.8 < min(found[1], found[2])
    assert np.isnan(found[3])
    assert 0 < model.about.threshold < 1  # type: ignore[operator]


def test_equal_texts_are_never_in_two_splits(tmp_path: Path) -> None:
    # Labels that no text explains: with copies in other splits, a model would seem to know them.
    draw = np.random.default_rng(3)
    records = []
    for n in range(60):
        text = " ".join(draw.choice(["alpha", "beta", "gamma", "delta", "epsilon", "zeta"], 12))
        records += [{"text": text, "label": int(n % 2)}] * 5
    data = write(tmp_path / "in.jsonl", records)
    manifest = train(tmp_path / "out", ClassifierConfig(features=14), RunOptions(workers=1), data=data)
    report = manifest.statistics["report"]
    assert report["examples"]["different_texts"] == 60
    assert 0.2 < report["auc"]["mean"] < 0.8


def test_the_expected_share_moves_probabilities_and_threshold(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    records = []
    for n in range(300):
        words = draw.choice(["offer", "report"], 8, p=[0.7, 0.3] if n % 2 else [0.3, 0.7])
        records.append({"text": " ".join(words) + f" {chr(97 + n % 26)}{chr(97 + n // 26)}", "label": str(bool(n % 2))})
    data = write(tmp_path / "in.jsonl", records)
    found = []
    for share in (None, 0.01):
        config = ClassifierConfig(features=14, expected_share=share, positive="True", precision=0.8)
        report = train(tmp_path / f"{share}", config, RunOptions(workers=1), data=data).statistics["report"]
        found.append((report["expected_share"], report["threshold"]["recall"]))
    assert [share for share, _ in found] == [0.5, 0.01]
    assert found[1][1] < found[0][1]


def test_reliability_and_threshold_by_hand() -> None:
    probabilities = np.array([0.05, 0.05, 0.95, 0.95, 0.55, 0.65])
    truth = np.array([False, False, True, True, False, True])
    weights = np.ones(6)
    bins = reliability(probabilities, truth, weights)["bins"]
    assert [(row["from"], row["documents"], row["true"]) for row in bins] == [
        (0.0, 2, 0.0),
        (0.5, 1, 0.0),
        (0.6, 1, 1.0),
        (0.9, 2, 1.0),
    ]
    assert choose_threshold(probabilities, truth, weights, 1.0) == {
        "wanted": 1.0,
        "threshold": pytest.approx(0.6),
        "precision": 1.0,
        "recall": 1.0,
    }
    assert choose_threshold(probabilities, truth, weights, 0.75)["threshold"] == pytest.approx(0.3)
    assert choose_threshold(probabilities, ~truth, weights, 0.9)["threshold"] is None


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([{"text": "a b c", "label": "x"}] * 5, "all labels are the same: x \\(5\\)"),
        ([{"text": "a b c"}], "no record of in.jsonl has the field `label`"),
        ([{"text": f"t{n}", "label": str(n % 3)} for n in range(9)], "there are 3 labels"),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}], "there are 1 different texts of `x`"),
        ([{"text": "a", "label": ["x"]}, {"text": "b", "label": "y"}], "no label"),
        ([{"text": " ", "label": "x"}], "no record of in.jsonl"),
    ],
)
def test_examples_of_no_use_are_told_in_a_sentence(tmp_path: Path, records: list[Any], problem: str) -> None:
    data = write(tmp_path / "in.jsonl", records)
    with pytest.raises(UserError, match=problem):
        train(tmp_path / "out", ClassifierConfig(features=12), RunOptions(workers=1), data=data)


def test_few_and_unequal_examples_are_judged_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in.jsonl", [*rows(GOOD, 200, label="ham"), *rows(BAD, 3, label="spam"), {"text": "?"}])
    command = ["classifier", "train", str(tmp_path / "out"), "--data", str(tmp_path / "in.jsonl"), "--features", "12"]
    assert run_command([*command, "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["statistics"]["report"]["label"] == "spam"
    assert "3 splits instead of 5" in printed.err
    assert "take all figures as rough" in printed.err
    assert "1 records have no `label`" in printed.err
    assert run_command(command) == 0
    assert "up to date" in capsys.readouterr().err


def test_the_same_examples_give_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "good.jsonl", rows(GOOD, 40))
    write(tmp_path / "bad.jsonl", rows(BAD, 40))
    config = ClassifierConfig(features=12, max_documents=25)
    for name in ("one", "two"):
        options = RunOptions(workers=1)
        train(tmp_path / name, config, options, good=tmp_path / "good.jsonl", bad=tmp_path / "bad.jsonl")
    assert (tmp_path / "one/manifest.json").read_bytes() == (tmp_path / "two/manifest.json").read_bytes()
    examples = read_manifest(tmp_path / "one").statistics["report"]["examples"]
    assert (examples["positive"], examples["rest"], examples["left_out"]) == (25, 25, 30)


# -- in filter


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    records = [{"id": f"g{n}", "text": text, "source": "web"} for n, text in enumerate(texts(GOOD, 12))]
    records += [{"id": f"b{n}", "text": text, "source": "web"} for n, text in enumerate(texts(BAD, 12))]
    records += [{"id": f"m{n}", "text": text, "source": "mail"} for n, text in enumerate(texts(BAD, 6))]
    return write(tmp_path / "in.jsonl", records)


def table(manifest: Manifest, folder: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in manifest.paths(f"{folder}/")])


def config(**values: Any) -> FilterConfig:
    return FilterConfig(**{"preset": ["none"], "read": ReadOptions(block_bytes=1500), **values})


def test_the_classifiers_own_threshold_and_limits_by_source(mixed: Path, spam: Path, tmp_path: Path) -> None:
    lenient = config(sources={"mail": {"classifier": {"spam": {"max": 1.0}}}})
    manifest = filter_run(mixed, tmp_path / "out", lenient, FilterOptions(workers=1), classifiers=[f"spam={spam}"])
    kept = set(table(manifest, "data")["id"].to_pylist())
    assert kept == {f"g{n}" for n in range(12)} | {f"m{n}" for n in range(6)}
    removed = table(manifest, "removed").to_pylist()
    assert {row["reason"] for row in removed} == {"classifier.spam"}
    threshold = read_classifier(str(spam), "x").about.threshold
    assert all(row["value"] > row["threshold"] == threshold for row in removed)
    scores = dict(
        zip(*[table(manifest, "attributes")[name].to_pylist() for name in ("id", "classifier.spam")], strict=True)
    )
    assert min(scores[f"m{n}"] for n in range(6)) > max(scores[f"g{n}"] for n in range(12))
    off = config(rules={"classifier": {"spam": "off"}})
    manifest = filter_run(mixed, tmp_path / "off", off, FilterOptions(workers=1), classifiers=[f"spam={spam}"])
    assert manifest.statistics["records"]["removed"] == 0


def test_workers_and_stored_scores_change_no_byte(
    mixed: Path, spam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [f"spam={spam}"]
    one = filter_run(mixed, tmp_path / "one", config(), FilterOptions(workers=1), classifiers=given)
    filter_run(mixed, tmp_path / "two", config(), FilterOptions(workers=2), classifiers=given)
    assert (tmp_path / "one/manifest.json").read_bytes() == (tmp_path / "two/manifest.json").read_bytes()
    assert len(one.paths("data/")) > 1
    other = config(rules={"classifier": {"spam": {"max": 0.99}}})
    measured = filter_run(mixed, tmp_path / "measured", other, FilterOptions(workers=1), classifiers=given)

    def refuse(*_: object) -> None:
        raise AssertionError("the classifier is asked again")

    monkeypatch.setattr(detections, "read_classifier", refuse)
    options = FilterOptions(workers=1, reuse_scores=str(tmp_path / "one"))
    reused = filter_run(mixed, tmp_path / "reused", other, options, classifiers=given)
    assert [file.sha256 for file in reused.files] == [file.sha256 for file in measured.files]


def test_wrong_classifiers_are_refused(
    mixed: Path, spam: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["filter", str(mixed), str(tmp_path / "out"), "--preset", "none", "--workers", "1"]
    for arguments, problem in (
        (["--classifier", str(spam)], "is not NAME=FOLDER"),
        (["--classifier", f"spam={mixed}"], "is a file"),
        (["--classifier", f"spam={tmp_path / 'nothing'}"], "does not exist"),
        (["--classifier", f"a={spam}", "--classifier", f"a={spam}"], "two classifiers are named `a`"),
        (["--set", "rules.classifier.toxic.max=0.4"], "none of that name is given"),
        (["--set", "rules.classifier=0.4"], "must be a section by classifier"),
        (["--classifier", f"a={spam}", "--set", "rules.classifier.a.most=1"], "unknown configuration key"),
    ):
        assert run_command([*command, *arguments]) == 2, problem
        assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_damaged_classifier_is_refused(mixed: Path, spam: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in spam.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    content = bytearray((copy / "weights.safetensors").read_bytes())
    content[3] = 255
    (copy / "weights.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as a classifier"):
        filter_run(mixed, tmp_path / "out", config(), FilterOptions(workers=1), classifiers=[f"a={copy}"])
