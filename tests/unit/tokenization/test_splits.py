"""Cutting long texts must not change their ids, under any split that llmctl knows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.tokenization.config import TokenizeConfig
from llmctl.tokenization.splits import PATTERNS, known_split, pieces
from llmctl.tokenization.train import train, untrained

# What decides where words end, in any mixture.
ATOMS = st.sampled_from(
    (*"a1 \n\t'。字カ・ーé!-\u2028\u00a0\u200b😀", "Word", "  ", "\r\n", "\n\n", "23", "'s", "e\u0301", "\u0e20\u0e32")
)


@pytest.fixture(scope="module", params=sorted(PATTERNS))
def tokenizer(request):
    texts = ["a word, the Word's words\n\nthe 字カ・ー。words 123!\n", "the café\u0301 é - a\r\nword  the"] * 10
    return train(texts, TokenizeConfig(split=request.param, vocab_size=280), 280).load()


@settings(deadline=None, max_examples=60)
@given(atoms=st.lists(ATOMS, max_size=40), limit=st.integers(1, 12))
def test_ids_of_pieces_are_ids_of_the_whole(tokenizer, atoms, limit):
    text = "".join(atoms)
    tokenizer.encode_special_tokens = True
    cut = list(pieces(text, limit))
    assert "".join(cut) == text
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    assert [number for piece in cut for number in tokenizer.encode(piece, add_special_tokens=False).ids] == whole


def test_long_prose_is_cut():
    text = "word " * 1000
    assert len(list(pieces(text, 100))) > 40
    assert max(len(piece) for piece in pieces(text, 100)) < 110


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_own_splits_are_known(name):
    assert known_split(untrained(TokenizeConfig(split=name)).to_str())
    assert known_split(untrained(TokenizeConfig(split=name, normalization="nfc")).to_str())


def test_gpt2_is_known_and_others_are_not():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert known_split(tokenizer.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert not known_split(tokenizer.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.normalizer = normalizers.Lowercase()
    assert not known_split(tokenizer.to_str())
    metaspace = Tokenizer(models.Unigram())
    metaspace.pre_tokenizer = pre_tokenizers.Metaspace()
    assert not known_split(metaspace.to_str())


def test_added_tokens_with_blanks_forbid_cuts(small_tokenizer):
    settings_ = json.loads(small_tokenizer.tokenizer_json)
    assert known_split(json.dumps(settings_))
    settings_["added_tokens"].append({"id": 500, "content": "type 2 diabetes", "special": False})
    assert not known_split(json.dumps(settings_))
