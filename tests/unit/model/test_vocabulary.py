"""Growing a vocabulary: old ids keep rows and logits, new rows are means of the old pieces, nothing grows twice."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from llmctl.errors import UserError
from llmctl.model.config import ModelConfig
from llmctl.model.huggingface import copy_shard, load_model, read_model_config, save_model
from llmctl.model.layers import Embedding, TensorGroup, shard_of
from llmctl.model.transformer import Transformer
from llmctl.model.vocabulary import GrownTokens, find_tokenizer_folder, grown_shape, growth_of, read_grown_tokens

BASE = 20
GROWN = {"base_vocab_size": BASE, "tokens": [{"id": 20, "pieces": [3, 5]}, {"id": 21, "pieces": [7, 7, 1]}]}


def write_tokenizer(folder, grown):
    from tokenizers import Tokenizer, models

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {chr(97 + number): number for number in range(BASE)}
    if grown:
        vocabulary |= {"df": 20, "hhb": 21}
    Tokenizer(models.BPE(vocab=vocabulary, merges=[])).save(str(folder / "tokenizer.json"))
    if grown:
        (folder / "grown_tokens.json").write_text(json.dumps(GROWN))
    return folder


def write_model(folder, tied, rows=BASE):
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=rows,
        num_layers=2,
        hidden_size=16,
        num_heads=2,
        num_kv_heads=1,
        ffn_hidden_size=24,
        max_seq_len=32,
        tied_embeddings=tied,
    )
    model = Transformer(config, seed=1)
    save_model(model, folder)
    write_tokenizer(folder, grown=False)
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_logits_of_old_tokens_stay_and_new_rows_are_means(tmp_path, tied):
    before = write_model(tmp_path / "model", tied)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", grown=True)
    grown = growth_of(tmp_path / "model", BASE, tokenizer)
    assert grown is not None
    after = load_model(tmp_path / "model", grown=grown)
    assert after.config.vocab_size == 22
    ids = torch.randint(0, BASE, (2, 9))
    with torch.no_grad():
        old, new = (model.logits(model(ids)) for model in (before, after))
    assert torch.equal(new[..., :BASE], old)
    for name in ("embed_tokens.weight",) if tied else ("embed_tokens.weight", "lm_head.weight"):
        rows, whole = dict(before.logical_parameters())[name], dict(after.logical_parameters())[name]
        assert torch.equal(whole[:BASE], rows)
        torch.testing.assert_close(whole[20], (rows[3] + rows[5]) / 2)
        torch.testing.assert_close(whole[21], (2 * rows[7] + rows[1]) / 3)
    if not tied:
        torch.testing.assert_close(new[..., 20], (old[..., 3] + old[..., 5]) / 2)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_tensor_parallel_part_gets_its_rows(tmp_path, rank):
    write_model(tmp_path / "model", tied=False)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", grown=True)
    grown = growth_of(tmp_path / "model", BASE, tokenizer)
    whole = dict(load_model(tmp_path / "model", grown=grown).logical_parameters())["embed_tokens.weight"]
    shape = grown_shape(read_model_config(tmp_path / "model"), grown)

    part = Embedding(shape.vocab_size, shape.hidden_size, 0.02, TensorGroup(3, rank)).weight
    with torch.no_grad():
        copy_shard(part, grown.rows(whole[:BASE], 22))
    start = shard_of(part).start
    rows = whole[start : start + len(part)]
    assert torch.equal(part[: len(rows)], rows)
    assert (part[len(rows) :] == 0).all()


def test_padded_rows_of_a_model_are_taken_for_new_tokens(tmp_path):
    write_model(tmp_path / "model", tied=False, rows=32)
    grown = growth_of(tmp_path / "model", 32, write_tokenizer(tmp_path / "tokenizer", grown=True))
    model = load_model(tmp_path / "model", grown=grown)
    assert model.config.vocab_size == 32
    rows = dict(model.logical_parameters())["embed_tokens.weight"]
    torch.testing.assert_close(rows[20], (rows[3] + rows[5]) / 2)


def test_a_model_that_knows_the_tokens_does_not_grow_again(tmp_path):
    write_model(tmp_path / "model", tied=False)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", grown=True)
    grown = growth_of(tmp_path / "model", BASE, tokenizer)
    save_model(load_model(tmp_path / "model", grown=grown), tmp_path / "second", tokenizer)
    assert growth_of(tmp_path / "second", 22, tokenizer) is None
    (tmp_path / "second" / "tokenizer.json").unlink()
    assert growth_of(tmp_path / "second", 22, tokenizer) is None
    assert growth_of(tmp_path / "model", BASE, write_tokenizer(tmp_path / "plain", grown=False)) is None


def test_another_tokenizer_is_refused(tmp_path):
    write_model(tmp_path / "model", tied=False)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", grown=True)
    path = tmp_path / "model" / "tokenizer.json"
    other = json.loads(path.read_text())
    other["model"]["vocab"] = {
        ("?" if number == 4 else token): number for token, number in other["model"]["vocab"].items()
    }
    path.write_text(json.dumps(other))
    with pytest.raises(UserError, match=r"id 4 is `\?` .* and `e`"):
        growth_of(tmp_path / "model", BASE, tokenizer)
    path.unlink()
    with pytest.raises(UserError, match="has grown from 20 tokens"):
        growth_of(tmp_path / "model", 12, tokenizer)


@pytest.mark.parametrize(
    "told",
    [
        "[]",
        '{"base_vocab_size": 5, "tokens": []}',
        '{"base_vocab_size": 5, "tokens": [{"id": 5, "pieces": []}]}',
        '{"base_vocab_size": 5, "tokens": [{"id": 5, "pieces": [5]}]}',
        '{"base_vocab_size": 5, "tokens": [{"id": 4, "pieces": [1]}]}',
        "nonsense",
    ],
)
def test_a_broken_list_is_refused(tmp_path, told):
    (tmp_path / "grown_tokens.json").write_text(told)
    with pytest.raises(UserError, match="does not describe new tokens"):
        read_grown_tokens(tmp_path)


def test_where_the_tokenizer_is(tmp_path):
    assert find_tokenizer_folder(write_tokenizer(tmp_path / "a" / "tokenizer", grown=True).parent).name == "tokenizer"
    shutil.copytree(tmp_path / "a" / "tokenizer", tmp_path / "b")
    assert find_tokenizer_folder(tmp_path / "b") == tmp_path / "b"
    with pytest.raises(UserError, match="no tokenizer"):
        find_tokenizer_folder(tmp_path / "nowhere")


def test_rows_keep_their_type():
    old = torch.arange(12, dtype=torch.bfloat16).reshape(6, 2)
    rows = GrownTokens(6, {6: (0, 1), 8: (5,)}).rows(old, 9)
    assert rows.dtype == torch.bfloat16
    assert torch.equal(rows[:6], old)
    assert rows[6].tolist() == [1, 2]
    assert rows[7].tolist() == [5, 6]  # belongs to no token: the mean of all
    assert rows[8].tolist() == [10, 11]
