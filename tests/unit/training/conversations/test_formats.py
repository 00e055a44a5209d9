"""Every common shape becomes a conversation or a comparison, or says why not."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from llmctl.artifacts.documents import InvalidRecord
from llmctl.artifacts.inputs import open_input
from llmctl.training.conversations.formats import read_conversations, read_prompt
from llmctl.training.conversations.preferences import read_comparison
from llmctl.training.conversations.reading import read_records
from llmctl.training.conversations.records import BadRecord, UnwantedRecord

QA = [("user", "Q"), ("assistant", "A")]


def turns(record) -> list[tuple[str, str]]:
    (conversation,) = read_conversations(record)
    return [(turn.role, turn.content) for turn in conversation.messages]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}, QA),
        ({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}, QA),
        (
            {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}], "system": "S"},
            [("system", "S"), *QA],
        ),
        ({"instruction": "Q", "input": "", "output": "A"}, QA),
        ({"instruction": "Q", "input": "X", "output": "A"}, [("user", "Q\nX"), ("assistant", "A")]),
        ({"instruction": "Q", "response": "A", "history": [["q", "a"]]}, [("user", "q"), ("assistant", "a"), *QA]),
        ({"prompt": "Q", "completion": "A"}, QA),
        ({"prompt": "Q", "response": "A<|endoftext|>"}, QA),
        ({"question": "Q", "answer": "A"}, QA),
        ({"prompt": [{"role": "user", "content": "Q"}], "completion": [{"role": "assistant", "content": "A"}]}, QA),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "Q"}]},
                    {"role": "assistant", "content": "A"},
                ]
            },
            QA,
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "Q"},
                    {"role": "assistant", "content": "A"},
                    {"role": "user", "content": "?"},
                ]
            },
            QA,
        ),
        ({"instruction": "Q", "instances": [{"input": "", "output": "A"}]}, QA),
    ],
)
def test_shapes(record, expected) -> None:
    assert turns(record) == expected


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ([1], "a list"),
        ({}, "no conversation"),
        ({"text": "x"}, "no conversation"),
        ({"prompt": "Q", "completion": True}, "boolean"),
        ({"prompt": "Q", "completion": "   "}, "empty"),
        ({"prompt": "Q", "completion": "<|endoftext|>"}, "empty"),
        ({"messages": []}, "empty"),
        ({"messages": "nonsense"}, "not a list"),
        ({"messages": [{"role": "user", "content": "Q"}]}, "no turn of the assistant"),
        ({"messages": [{"role": "assistant", "content": "A"}]}, "no turn of the user"),
        ({"messages": [{"role": "wizard", "content": "Q"}]}, "unknown role: turn 1 has 'wizard'"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}, "not text"),
        ({"prompt": "Q", "chosen": "A", "rejected": "B"}, "comparison"),
        ({"messages": [7]}, "turn 1 is a number"),
    ],
)
def test_refused_with_a_reason(record, reason) -> None:
    with pytest.raises(BadRecord, match=reason):
        read_conversations(record)


def test_marked_as_unwanted_is_not_invalid() -> None:
    with pytest.raises(UnwantedRecord):
        read_conversations({"messages": [{"role": "user", "content": "Q"}], "label": False})


def test_tool_calls_become_text_and_tools_are_kept() -> None:
    (conversation,) = read_conversations(
        {
            "conversations": [
                {"from": "human", "value": "Q"},
                {"from": "function_call", "value": '{"name": "f"}'},
                {"from": "observation", "value": "1"},
                {"from": "gpt", "value": "A"},
            ],
            "tools": '[{"name": "f"}]',
        }
    )
    assert [turn.role for turn in conversation.messages] == ["user", "assistant", "tool", "assistant"]
    assert conversation.messages[1].content == '<tool_call>\n{"name": "f"}\n</tool_call>'
    assert conversation.tools == ({"name": "f"},)


def test_prompts_lose_the_answer() -> None:
    assert [turn.content for turn in read_prompt({"prompt": "Q", "completion": "A"}).messages] == ["Q"]
    assert [
        turn.content
        for turn in read_prompt(
            {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}
        ).messages
    ] == ["Q"]
    with pytest.raises(BadRecord, match="empty"):
        read_prompt({"prompt": "  "})


def compared(record):
    found = read_comparison(record)
    return [turn.content for turn in found.prompt], found.answers, found.scores


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt": "Q", "chosen": "A", "rejected": "B"}, (["Q"], ("A", "B"), (1.0, 0.0))),
        (
            {"chosen": "\n\nHuman: Q\n\nAssistant: A", "rejected": "\n\nHuman: Q\n\nAssistant: B"},
            (["Q"], ("A", "B"), (1.0, 0.0)),
        ),
        (
            {
                "conversations": [{"from": "human", "value": "Q"}],
                "chosen": {"from": "gpt", "value": "A"},
                "rejected": {"from": "gpt", "value": "B"},
            },
            (["Q"], ("A", "B"), (1.0, 0.0)),
        ),
        (
            {
                "chosen": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}],
                "rejected": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "B"}],
            },
            (["Q"], ("A", "B"), (1.0, 0.0)),
        ),
        (
            {"prompt": "Q", "responses": [{"text": "A", "score": 2}, {"text": "B", "score": 1}]},
            (["Q"], ("A", "B"), (2.0, 1.0)),
        ),
        (
            {"prompt": "Q", "responses": ["A", "B", "C"], "ranks": [2, 1, 3]},
            (["Q"], ("A", "B", "C"), (-2.0, -1.0, -3.0)),
        ),
        (
            {
                "instruction": "Q",
                "input": "",
                "response1": "A",
                "response2": "B",
                "annotator1": 2,
                "annotator2": 2,
                "annotator3": 1,
            },
            (["Q"], ("A", "B"), (0.0, 1.0)),
        ),
        ({"prompt": "Q", "response_a": "A", "response_b": "B", "winner": "tie"}, (["Q"], ("A", "B"), (0.0, 0.0))),
    ],
)
def test_comparisons(record, expected) -> None:
    assert compared(record) == expected


def test_pairs_of_a_ranking_leave_out_ties() -> None:
    found = read_comparison({"prompt": "Q", "responses": ["A", "B", "C"], "scores": [3, 1, 1]})
    assert found.pairs() == [(0, 1), (0, 2)] and found.num_ties == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "Q", "chosen": "A"}, "no `rejected`"),
        ({"prompt": "Q", "chosen": "A", "rejected": "A"}, "same text"),
        ({"prompt": "Q", "chosen": "A", "rejected": ""}, "empty"),
        ({"instruction": "Q", "response1": True, "response2": "B", "annotator1": 1}, "boolean"),
        ({"prompt": "Q", "responses": ["A"], "scores": [1]}, "fewer than two"),
        ({"prompt": "Q", "responses": ["A", "B"]}, "not a score or rank for each"),
        ({"chosen": "\n\nHuman: Q", "rejected": "\n\nHuman: P"}, "no prompt in common"),
        ({"prompt": "Q", "completion": "A"}, "no comparison"),
    ],
)
def test_comparisons_refused_with_a_reason(record, reason) -> None:
    with pytest.raises(BadRecord, match=reason):
        read_comparison(record)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


LINES = [{"prompt": f"Q{i}", "completion": "A"} for i in range(3)]
JSONL = b"".join(json.dumps(line).encode() + b"\n" for line in LINES)


def test_containers_hold_the_same_records(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(LINES), tmp_path / "e.bin")
    files = [
        write(tmp_path / "a", JSONL),
        write(tmp_path / "b", json.dumps(LINES, indent=2).encode()),
        write(tmp_path / "c", gzip.compress(JSONL[:40]) + gzip.compress(JSONL[40:])),
        write(tmp_path / "d", zstandard.compress(JSONL[:40]) + zstandard.compress(JSONL[40:])),
        tmp_path / "e.bin",
        write(tmp_path / "f", b"\xef\xbb\xbf\n\n" + JSONL),
        write(tmp_path / "g", gzip.compress(json.dumps(LINES).encode())),
    ]
    for file in files:
        records = list(read_records(open_input(file)))
        assert [record.value for record in records] == LINES, file


def test_a_broken_line_costs_that_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", b'{"prompt": 1}\n{broken\n\n\xff\xfe\n"text"\n{"x": "\\ud800"}\n' + JSONL)
    records = list(read_records(open_input(file)))
    assert [record.line for record in records if isinstance(record, InvalidRecord)] == [2, 4, 6]
    assert len(records) == 5 + 3


def test_cut_off_compression_keeps_what_came_before(tmp_path: Path) -> None:
    many = JSONL * 20000
    file = write(tmp_path / "a.jsonl.gz", gzip.compress(many)[:-2000])
    records = list(read_records(open_input(file)))
    assert isinstance(records[-1], InvalidRecord) and "cannot be read" in records[-1].error
    assert len(records) > 100


def test_every_shared_file_loads_or_says_why_not(shared_data: Path) -> None:
    readers = {"conversation": read_conversations, "comparison": read_comparison}
    usable: dict[str, Counter[str]] = {}
    for file in sorted((shared_data / "post").iterdir()):
        counts: Counter[str] = Counter()
        for record in read_records(open_input(file)):
            assert not isinstance(record, InvalidRecord), record
            for name, reader in readers.items():
                try:
                    reader(record.value)
                    counts[name] += 1
                except BadRecord as failure:
                    assert str(failure)
            counts["all"] += 1
        usable[file.name] = counts
    comparisons = {name: c["comparison"] / c["all"] for name, c in usable.items() if c["comparison"]}
    assert set(comparisons) == {
        "alpacaeval_kwise7_gpt4judge.jsonl.gz",
        "hh_harmless_base_test.jsonl.gz",
        "llamafactory_dpo_en_demo.json.gz",
        "llamafactory_dpo_zh_demo.json.gz",
        "pandalm_testset_v1.json.gz",
    }
    assert min(comparisons.values()) > 0.9
    shares = {name: c["conversation"] / c["all"] for name, c in usable.items() if name not in comparisons}
    assert shares.pop("anthropic_evals_persona_sample.jsonl.gz") == 0  # two answers, neither marked as right
    assert 0.4 < shares.pop("llamafactory_kto_en_demo.json.gz") < 0.6  # half are labelled as bad
    assert min(shares.values()) > 0.95
