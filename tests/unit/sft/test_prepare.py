"""Reading conversations: accounting, overlong rows, splits, template phrases."""

from __future__ import annotations

import dataclasses
import json

import pytest

from llmctl.artifacts.inputs import open_input
from llmctl.errors import UserError
from llmctl.sft.config import SftConfig
from llmctl.sft.data import build_data, read_data, write_data
from llmctl.sft.phrases import compile_phrases
from llmctl.sft.prepare import prepare, split

CONFIG = SftConfig(seq_len=64, min_seed=0)


def source(tmp_path, made, records, name="a.jsonl"):
    return open_input(made.write_lines(tmp_path / name, records))


def turns(question: str, answer: str) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def test_every_record_is_accounted_for(tmp_path, made, template) -> None:
    records = [
        *made.conversations(4),
        {"prompt": "Q", "completion": True},
        turns("Q", "long " * 100),
        {"messages": [{"role": "user", "content": "Q"}], "label": False},
        {"text": "no conversation"},
    ]
    prepared = prepare(source(tmp_path, made, records), template, CONFIG)
    prepared.ledger.accounting.check()
    assert prepared.ledger.accounting.records() == {"in": 8, "kept": 4, "removed": 2, "invalid": 2}
    assert {row["reason"]: row["line"] for row in prepared.ledger.removed} == {"overlong": 6, "unwanted": 7}
    assert [record.line for record in prepared.ledger.invalid] == [5, 8]
    assert len(prepared.rendered) == 4


def test_truncation_keeps_what_can_still_be_learned(tmp_path, made, template) -> None:
    records = [turns("Q", "long " * 100), turns("question " * 100, "A")]
    config = dataclasses.replace(CONFIG, overlong="truncate")
    prepared = prepare(source(tmp_path, made, records), template, config)
    (row,) = prepared.rendered
    assert len(row.ids) == 65 and row.trained[-1]
    assert [(entry["line"], entry["reason"]) for entry in prepared.ledger.removed] == [(2, "answer_cut_off")]
    assert prepared.ledger.notes["conversations truncated to seq_len"] == 1


def test_nothing_usable_is_an_error_with_the_reason(tmp_path, made, template) -> None:
    with pytest.raises(UserError, match="none of the 2 records") as failure:
        build_data(source(tmp_path, made, [turns("Q", "long " * 100)] * 2), None, template, CONFIG)
    assert "seq-len" in str(failure.value.hint)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(UserError, match="holds no records"):
        build_data(open_input(empty), None, template, CONFIG)


def test_a_prompt_is_on_one_side_of_the_split_and_stays_there(tmp_path, made, template) -> None:
    records = [*made.conversations(60), *made.conversations(60)]
    prepared = prepare(source(tmp_path, made, records), template, CONFIG)
    training, validation = split(prepared, 0.2, seed=0)
    assert 0 < len(validation) < 60
    texts = [{tuple(row.ids) for row in part} for part in (training, validation)]
    assert not texts[0] & texts[1]
    more = prepare(source(tmp_path, made, made.conversations(100), "b.jsonl"), template, CONFIG)
    assert texts[1] <= {tuple(row.ids) for row in split(more, 0.2, seed=0)[1]}


def test_validation_rows_are_not_trained_on(tmp_path, made, template) -> None:
    data = build_data(
        source(tmp_path, made, made.conversations(20)),
        source(tmp_path, made, made.conversations(10, first=15), "v.jsonl"),
        template,
        CONFIG,
    )
    assert data.statistics["conversations"] == {"training": 15, "validation": 10, "in_both": 5}
    assert data.statistics["records"] == {"in": 20, "kept": 20, "removed": 0, "invalid": 0}
    with pytest.raises(UserError, match="every training conversation"):
        build_data(
            source(tmp_path, made, made.conversations(5)),
            source(tmp_path, made, made.conversations(5), "v.jsonl"),
            template,
            CONFIG,
        )


def test_data_is_read_back_as_written(tmp_path, made, template) -> None:
    records = [*made.conversations(20), {"text": "no conversation"}]
    data = build_data(
        source(tmp_path, made, records), None, template, dataclasses.replace(CONFIG, validation_fraction=0.2)
    )
    root = tmp_path / "run"
    write_data(data, root)
    again = read_data(root, CONFIG)
    assert again.statistics == json.loads(json.dumps(data.statistics))
    assert again.plan == data.plan and again.training.ids.tolist() == data.training.ids.tolist()
    line = json.loads((root / "invalid" / "training.jsonl").read_text())
    assert line["line"] == 21 and "no conversation" in line["error"]


@pytest.mark.parametrize(
    "answer",
    [
        "As an AI language model, I cannot do that.",
        "I don't have personal opinions on this.",
        "作为一个人工智能语言模型，我无法回答。",
        "作为AI助手，我很乐意。",
    ],
)
def test_template_phrases_are_found(answer: str) -> None:
    assert compile_phrases(["builtin"]).search(answer)


@pytest.mark.parametrize("answer", ["The model runs as an aircraft.", "I am a baker.", "今天天气很好。"])
def test_ordinary_answers_are_not(answer: str) -> None:
    assert compile_phrases(["builtin"]).search(answer) is None


def test_template_phrases_are_counted_or_dropped(tmp_path, made, template) -> None:
    records = [turns("Q", "As an AI model I"), turns("as an AI model", "fine"), turns("Q", "my own phrase")]
    prepared = prepare(source(tmp_path, made, records), template, CONFIG)
    assert prepared.phrases == {"a.jsonl": 1} and "a.jsonl:1" in prepared.phrase_samples[0]
    config = dataclasses.replace(CONFIG, drop_template=True, template_phrases=["builtin", "own phrase"])
    dropped = prepare(source(tmp_path, made, records), template, config)
    assert [row["line"] for row in dropped.ledger.removed] == [1, 3]
    assert len(dropped.rendered) == 1
    with pytest.raises(UserError, match="no such file"):
        compile_phrases(["missing.txt"])


def test_shared_phrase_outputs_differ_by_model(shared_data, template) -> None:
    """Answers of instruction-tuned models hold template phrases far more often than those of base models."""
    import gzip
    from collections import Counter

    pattern = compile_phrases(["builtin"])
    found: Counter[str] = Counter()
    total: Counter[str] = Counter()
    with gzip.open(shared_data / "post" / "template_phrase_detector_outputs.jsonl.gz", "rt") as lines:
        for line in lines:
            record = json.loads(line)
            total[record["generator"]] += 1
            found[record["generator"]] += bool(pattern.search(record["response"]))
    shares = {name: found[name] / total[name] for name in total}
    assert max(shares.values()) > 3 * min(shares.values()) + 0.01, shares
