"""Existing tokenizers keep their ids, in every form they come in."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from llmctl.errors import UserError
from llmctl.tokenization.config import TokenizeConfig
from llmctl.tokenization.encode import Encoder
from llmctl.tokenization.existing import load_existing, tokenizer_input
from llmctl.tokenization.letters import byte_letters

SAMPLES = ["The dog doesn't  sleep.\n\n 12345", "字カ・ー नमस्ते", "über den faulen Hund", "a<|endoftext|>b"]


def load(path, **config):
    return load_existing(tokenizer_input(path), TokenizeConfig(tokenizer=str(path), **config))


def ids(folder, text):
    return Encoder(folder.load(), folder.facts()).encode([text])[0].tolist()


@pytest.fixture
def folder(small_tokenizer, tmp_path):
    small_tokenizer.write(tmp_path)
    return tmp_path / "tokenizer"


def test_a_folder_is_kept_as_it_is(folder, small_tokenizer, tmp_path):
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model.safetensors").write_bytes(b"not read")
    loaded = load(folder)
    assert loaded.facts() == small_tokenizer.facts()
    assert all(ids(loaded, text) == ids(small_tokenizer, text) for text in SAMPLES)
    loaded.write(tmp_path / "again")
    written = {path.name: path.read_bytes() for path in (tmp_path / "again" / "tokenizer").iterdir()}
    assert written == {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "model.safetensors"}


def test_a_lone_json_gets_settings(folder, small_tokenizer, tmp_path):
    lone = tmp_path / "mine.json"
    lone.write_text(small_tokenizer.tokenizer_json)
    loaded = load(lone)
    assert loaded.eos_token == "<|endoftext|>"
    assert ids(loaded, SAMPLES[0]) == ids(small_tokenizer, SAMPLES[0])
    loaded.write(tmp_path / "again")
    config = json.loads((tmp_path / "again" / "tokenizer" / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|endoftext|>"


def test_another_eos_is_written_too(folder, tmp_path):
    from transformers import AutoTokenizer

    loaded = load(folder, eos_token="<|im_end|>")
    assert loaded.facts().eos_id == 3
    loaded.write(tmp_path / "again")
    assert AutoTokenizer.from_pretrained(tmp_path / "again" / "tokenizer").eos_token == "<|im_end|>"


def test_an_unknown_eos_is_refused(folder):
    with pytest.raises(UserError, match="nothing"):
        load(folder, eos_token="nothing").facts()


def test_a_tokenizer_without_any_end_is_refused(folder, small_tokenizer, tmp_path):
    settings = json.loads(small_tokenizer.tokenizer_json)
    settings["added_tokens"] = []
    vocabulary = settings["model"]["vocab"]
    vocabulary["<|x|>"] = vocabulary.pop("<|endoftext|>")
    (tmp_path / "bare.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="ends a document") as failure:
        load(tmp_path / "bare.json")
    assert "--eos-token" in failure.value.hint


@pytest.mark.parametrize("content", ["{}", "not json", '{"model": {"type": "Unknown"}}'])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError, match="not a tokenizer"):
        load(tmp_path / "tokenizer.json")


def test_paths_without_a_tokenizer_are_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        tokenizer_input(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no tokenizer"):
        tokenizer_input(tmp_path)


def test_a_folder_from_before_tokenizer_json(folder, small_tokenizer, tmp_path):
    """vocab.json and merges.txt, as GPT-2 was released: transformers reads them, and the ids stay."""
    model = json.loads(small_tokenizer.tokenizer_json)["model"]
    old = tmp_path / "old"
    old.mkdir()
    (old / "vocab.json").write_text(json.dumps(model["vocab"]))
    (old / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in model["merges"]))
    (old / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"})
    )
    loaded = load(old)
    assert loaded.facts().eos_id == 0
    vocabulary = loaded.load().get_vocab()
    assert {token: vocabulary[token] for token in model["vocab"]} == model["vocab"]


def test_tiktoken_ranks_keep_their_ids(small_tokenizer, tmp_path):
    """Our own vocabulary written as ranks gives the same ids, less the special tokens in front."""
    letters = {letter: byte for byte, letter in byte_letters().items()}
    vocabulary = json.loads(small_tokenizer.tokenizer_json)["model"]["vocab"]
    lines = [
        base64.b64encode(bytes(letters[letter] for letter in token)) + f" {number - 4}".encode()
        for token, number in sorted(vocabulary.items(), key=lambda item: item[1])
        if number >= 4
    ]
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(b"\n".join(lines))
    loaded = load(path)
    assert loaded.facts().eos_id == 496
    for text in SAMPLES:
        assert [number + 4 for number in ids(loaded, text)[:-1]] == ids(small_tokenizer, text)[:-1]


def test_a_broken_tiktoken_file_is_refused(tmp_path):
    path = tmp_path / "x.tiktoken"
    path.write_text("YQ== 0\n")
    with pytest.raises(UserError, match="255 of the 256 bytes"):
        load(path)
    path.write_text("%%%\n")
    with pytest.raises(UserError, match="tiktoken file"):
        load(path)


@pytest.mark.parametrize(("extra", "dtype"), [(0, "uint16"), (1, "uint32")])
def test_the_dtype_counts_added_tokens(small_tokenizer, tmp_path, extra, dtype):
    """65,536 ids fit into uint16; one added token more does not, though `vocab_size` of the model does not change."""
    settings = json.loads(small_tokenizer.tokenizer_json)
    vocabulary = settings["model"]["vocab"]
    vocabulary.update({f"filler{number}": number for number in range(len(vocabulary), 65_536)})
    settings["added_tokens"] += [
        {**settings["added_tokens"][0], "id": 65_536 + number, "content": f"<|more{number}|>"}
        for number in range(extra)
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    eos = "<|more0|>" if extra else "<|endoftext|>"
    loaded = load(tmp_path / "tokenizer.json", eos_token=eos)
    facts = loaded.facts()
    assert (facts.vocab_size, facts.dtype) == (65_536 + extra, dtype)
    encoded, _ = Encoder(loaded.load(), facts).encode(["the dog"])
    assert encoded.dtype == np.dtype(dtype) and encoded[-1] == facts.eos_id == (65_536 if extra else 0)
