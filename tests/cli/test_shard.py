"""`llmctl shard` as a user runs it, on the output of `llmctl tokenize`."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmctl.artifacts.shards import open_shards
from llmctl.cli.app import run


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A vocabulary of bytes only, so that no text is special."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "x.jsonl").write_text('{"text": "a"}\n')
    assert run(["tokenize", str(folder), str(folder.parent / "base"), "--vocab-size", "260", "-q"]) == 0
    return folder.parent / "base"


@pytest.fixture
def tokens(tmp_path, tokenizer, capsys):
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "text": f"text {n} " * n, "source": f"s{n % 2}"}) + "\n" for n in range(50))
    )
    command = ["tokenize", str(tmp_path / "x.jsonl"), str(tmp_path / "tokens"), "--tokenizer", str(tokenizer), "-q"]
    assert run(command) == 0
    capsys.readouterr()
    return tmp_path / "tokens"


def result(capsys):
    return json.loads(capsys.readouterr().out)


def test_shard_verify_damage(tokens, tmp_path, capsys):
    out = tmp_path / "shards"
    assert run(["shard", str(tokens), str(out), "--shard-size", "5KB", "--json"]) == 0
    statistics = result(capsys)["statistics"]
    assert statistics["documents"] == 50
    assert run(["shard", str(tokens), str(out), "--shard-size", "5KB"]) == 0
    assert "up to date" in capsys.readouterr().err
    assert run(["shard", str(tokens), str(out)]) == 2
    assert "shard_size" in capsys.readouterr().err
    assert run(["shard", "--verify", str(out), "--json"]) == 0
    assert result(capsys)["faults"] == []
    path = out / statistics["shards"][0]["path"]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert run(["shard", "--verify", str(out), "--json"]) == 1
    captured = capsys.readouterr()
    (fault,) = json.loads(captured.out)["faults"]
    assert fault["file"] == statistics["shards"][0]["path"]
    assert f"{fault['file']}, record {fault['record']} at byte {fault['offset']}" in captured.err


def test_dry_run_writes_nothing(tokens, tmp_path, capsys):
    assert run(["shard", str(tokens), str(tmp_path / "out"), "--dry-run", "--json"]) == 0
    assert result(capsys)["documents"] == 50
    assert not (tmp_path / "out").exists()


def test_mistakes(tokens, tmp_path, capsys):
    for arguments, words in [
        ([str(tmp_path / "x.jsonl"), str(tmp_path / "o")], "llmctl tokenize"),
        ([str(tokens)], "OUTPUT is missing"),
        ([str(tokens), str(tmp_path / "o"), "--shard-size", "many"], "a size such as 200MB"),
        ([str(tokens), str(tokens)], "is the input itself"),
        ([str(tmp_path / "nowhere"), str(tmp_path / "o")], "does not exist"),
    ]:
        assert run(["shard", *arguments]) == 2
        err = capsys.readouterr().err
        assert words in err and "hint: " in err and "Traceback" not in err


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=8))
def test_any_documents_through_both_come_back(tokenizer, tmp_path_factory, texts):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("any")
    rows = [json.dumps({"id": str(n), "text": text, "source": f"s{n % 3}"}) for n, text in enumerate(texts)]
    (folder / "x.jsonl").write_text("\n".join(rows))
    one, two = folder / "tokens", folder / "shards"
    assert run(["tokenize", str(folder / "x.jsonl"), str(one), "--tokenizer", str(tokenizer), "-q"]) in (0, 3)
    assert run(["shard", str(one), str(two), "-q", "--shuffle"]) == 0
    shards = open_shards(two)
    loaded = AutoTokenizer.from_pretrained(shards.tokenizer)
    found = {}
    for number in range(len(shards)):
        *ids, last = shards.tokens(number).tolist()
        assert last == shards.eos_id
        text = loaded.decode(ids, clean_up_tokenization_spaces=False)
        assert len(text.encode()) == shards.num_bytes[number]
        found[shards.features(number)["id"].decode()] = text
    kept = {str(n): text for n, text in enumerate(texts) if str(n) in found}
    assert found == kept
    manifest = json.loads((one / "manifest.json").read_text())
    assert len(found) == len(texts) - manifest["statistics"]["records"]["invalid"]


def test_special_tokens_surrogates_and_empty_texts(tokenizer, tmp_path, capsys):
    """Text that looks like a special token stays text; half a character is told as invalid, and nothing is lost."""
    texts = ["<|endoftext|>", "a <|im_start|> b", "\x00", "e\u0301 \ufeff", "half \ud800", ""]
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "text": t}) + "\n" for n, t in enumerate(texts))
    )
    more = ["--tokenizer", str(tokenizer), "--max-invalid-share", "1", "-q"]
    assert run(["tokenize", str(tmp_path / "x.jsonl"), str(tmp_path / "tokens"), *more]) == 0
    assert run(["shard", str(tmp_path / "tokens"), str(tmp_path / "shards"), "-q"]) == 0
    from tokenizers import Tokenizer

    shards = open_shards(tmp_path / "shards")
    loaded = Tokenizer.from_file(str(shards.tokenizer / "tokenizer.json"))
    found = {
        shards.features(number)["id"].decode(): loaded.decode(shards.tokens(number)[:-1].tolist(), False)
        for number in range(len(shards))
    }
    records = json.loads((tmp_path / "tokens" / "manifest.json").read_text())["statistics"]["records"]
    assert records["in"] == len(texts) == len(found) + records["invalid"]
    assert {number: found[number] for number in "0123"} == {str(n): texts[n] for n in range(4)}
    assert "4" not in found
