"""`llmctl diagnose` as its users call it."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from llmctl.cli.app import run as llmctl


def log(folder: Path, steps: int = 120, nan_from: int | None = None) -> Path:
    """Write a run whose loss falls smoothly, or is lost from a step on."""
    folder.mkdir(parents=True)
    rows = []
    for step in range(1, steps + 1):
        loss = 3 + 6 * math.exp(-step / 40) + 0.02 * math.sin(step * 1.7)
        rows.append({"step": step, "loss": float("nan") if nan_from and step >= nan_from else loss, "lr": 3e-4})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_healthy_run_says_so(tmp_path: Path, capsys) -> None:
    assert llmctl(["diagnose", str(log(tmp_path / "run"))]) == 0
    assert "healthy" in capsys.readouterr().out


def test_findings_do_not_change_the_status_unless_asked(tmp_path: Path, capsys) -> None:
    folder = str(log(tmp_path / "run", nan_from=60))
    assert llmctl(["diagnose", folder]) == 0
    out = capsys.readouterr().out
    assert "loss_nan" in out and "fix:" in out
    assert llmctl(["diagnose", folder, "--exit-code"]) == 3
    assert llmctl(["diagnose", str(log(tmp_path / "well")), "--exit-code"]) == 0


def test_json_is_one_object_with_findings(tmp_path: Path, capsys) -> None:
    assert llmctl(["diagnose", str(log(tmp_path / "run", nan_from=60)), "--json", "--exit-code"]) == 3
    told = json.loads(capsys.readouterr().out)
    (finding,) = told["findings"]
    assert finding["rule"] == "loss_nan" and finding["step"] == 60 and finding["severity"] == "critical"
    assert {"evidence", "cause", "fix"} <= set(finding)
    assert told["healthy"] is False and "kl" in told["not_judged"]["negative_kl"]


def test_a_few_steps_are_no_clean_bill_of_health(tmp_path: Path, capsys) -> None:
    assert llmctl(["diagnose", str(log(tmp_path / "run", steps=8)), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is False and "too few" in told["verdict"]


def test_the_page_is_whole_and_alone(tmp_path: Path) -> None:
    page = tmp_path / "pages" / "report.html"
    assert llmctl(["diagnose", str(log(tmp_path / "run", nan_from=60)), "--html", str(page)]) == 0
    text = page.read_text()
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert "loss_nan" in text and "http://" not in text and "https://" not in text and "<script" not in text


def test_one_rule_only(tmp_path: Path, capsys) -> None:
    assert llmctl(["diagnose", str(log(tmp_path / "run", nan_from=60)), "--rule", "loss_spike", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["findings"] == [] and told["judged"] == ["loss_spike"]


def test_rules_explain_themselves(capsys) -> None:
    assert llmctl(["diagnose", "--explain", "throughput_falling"]) == 0
    assert "Theil" in capsys.readouterr().out
    assert llmctl(["diagnose", "--explain", "all"]) == 0
    assert "loss_nan" in capsys.readouterr().out
    assert llmctl(["diagnose", "--explain", "throughput_fallin"]) == 2
    assert "did you mean `throughput_falling`" in capsys.readouterr().err


def test_an_output_folder_is_an_artifact(tmp_path: Path, capsys) -> None:
    run, output = log(tmp_path / "run", nan_from=60), tmp_path / "report"
    for _ in range(2):
        assert llmctl(["diagnose", str(run), str(output)]) == 0
    assert "up to date" in capsys.readouterr().err
    manifest = json.loads((output / "manifest.json").read_text())
    assert (manifest["kind"], manifest["stage"]) == ("report", "diagnose")
    assert manifest["statistics"]["findings"][0]["rule"] == "loss_nan"
    assert {file["path"] for file in manifest["files"]} >= {"findings.json", "report.html"}
    assert str(tmp_path) not in (output / "manifest.json").read_text() + (output / "findings.json").read_text()


@pytest.mark.parametrize("arguments", [[], ["missing"], ["."], ["x.csv"]])
def test_mistakes_get_a_sentence_and_a_hint(tmp_path: Path, capsys, monkeypatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("")
    assert llmctl(["diagnose", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and "hint: " in told and "Traceback" not in told


def test_the_page_must_be_a_file_beside_the_run(tmp_path: Path, capsys) -> None:
    run = log(tmp_path / "run")
    assert llmctl(["diagnose", str(run), "--html", str(tmp_path)]) == 2
    assert llmctl(["diagnose", str(run / "metrics.jsonl"), "--html", str(run / "metrics.jsonl")]) == 2
    assert (run / "metrics.jsonl").read_text().startswith("{")
