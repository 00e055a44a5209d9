"""The trained vocabulary: exact size, reproducible, lossless, loaded by AutoTokenizer."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.errors import UserError
from llmctl.tokenization.config import CHAT_TOKENS, EOS_TOKEN, PAD_TOKEN, TokenizeConfig
from llmctl.tokenization.encode import Encoder, tokenizer_threads
from llmctl.tokenization.train import train


@pytest.fixture(scope="module")
def encoder(small_tokenizer):
    return Encoder(small_tokenizer.load(), small_tokenizer.facts())


def test_the_size_is_exact_and_special_tokens_come_first(small_tokenizer):
    tokenizer = small_tokenizer.load()
    assert tokenizer.get_vocab_size() == 500
    assert [tokenizer.token_to_id(token) for token in (EOS_TOKEN, PAD_TOKEN, *CHAT_TOKENS)] == [0, 1, 2, 3]
    facts = small_tokenizer.facts()
    assert (facts.vocab_size, facts.eos_id, facts.pad_id, facts.dtype) == (500, 0, 1, "uint16")


def test_too_large_a_vocabulary_is_refused_with_the_possible_one():
    texts = ["one short text, one short text"]
    with pytest.raises(UserError, match="5,000") as failure:
        train(texts, TokenizeConfig(vocab_size=5000), 5000)
    possible = int(re.search(r"--vocab-size (\d+)", failure.value.hint).group(1))
    assert train(texts, TokenizeConfig(vocab_size=possible), possible).load().get_vocab_size() == possible


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(UserError, match="262"):
        TokenizeConfig(vocab_size=261, special_tokens=["<|a|>", "<|b|>"]).validate()
    TokenizeConfig(vocab_size=262, special_tokens=["<|a|>", "<|b|>"]).validate()
    assert train(["abc"], TokenizeConfig(vocab_size=260), 260).load().get_vocab_size() == 260


@pytest.mark.parametrize("tokens", [["<|pad|>"], [" "], ["<|x|>", "<|x|>"]])
def test_special_tokens_stand_once(tokens):
    with pytest.raises(UserError, match="special_tokens"):
        TokenizeConfig(special_tokens=tokens).validate()


def test_threads_do_not_change_the_vocabulary(small_tokenizer, small_config, training_texts):
    with tokenizer_threads(1):
        assert train(training_texts, small_config, 500).tokenizer_json == small_tokenizer.tokenizer_json


@settings(deadline=None, max_examples=80)
@given(st.text(max_size=60))
def test_any_unicode_comes_back(encoder, text):
    ids, lengths = encoder.encode([text])
    assert ids[-1] == 0 and lengths.tolist() == [len(ids)] and (ids == 0).sum() == 1
    assert encoder.tokenizer.decode(ids[:-1].tolist(), skip_special_tokens=False) == text
    assert encoder.gives_back(text, ids[:-1])


def test_special_tokens_in_text_are_plain_text(encoder, small_tokenizer):
    text = f"a{EOS_TOKEN}b{PAD_TOKEN}{CHAT_TOKENS[0]}"
    ids, _ = encoder.encode([text])
    assert (ids[:-1] > 3).all()
    assert encoder.gives_back(text, ids[:-1])
    allowed, _ = Encoder(small_tokenizer.load(), small_tokenizer.facts(), allow_special=True).encode([text])
    assert [number for number in allowed.tolist() if number <= 3] == [0, 1, 2, 0]


def test_several_texts_keep_their_order(encoder):
    texts = ["", "a", "", "the dog", "\n"]
    ids, lengths = encoder.encode(texts)
    ends = lengths.cumsum()
    found = [
        encoder.tokenizer.decode(ids[end - length : end - 1].tolist())
        for end, length in zip(ends, lengths, strict=True)
    ]
    assert found == texts


def test_normalisation_is_off_unless_asked(small_config):
    decomposed = "cafe\u0301"
    plain = train([decomposed] * 5, TokenizeConfig(vocab_size=262), 262)
    composed = train([decomposed] * 5, TokenizeConfig(vocab_size=262, normalization="nfc"), 262)
    for folder, expected in ((plain, decomposed), (composed, "caf\u00e9")):
        encoder = Encoder(folder.load(), folder.facts())
        ids, _ = encoder.encode([decomposed])
        assert encoder.tokenizer.decode(ids[:-1].tolist()) == expected
        assert encoder.gives_back(decomposed, ids[:-1])


def test_vowel_signs_stay_in_their_word():
    def words(split):
        tokenizer = train(["a"], TokenizeConfig(vocab_size=260, split=split), 260).load()
        return len(tokenizer.pre_tokenizer.pre_tokenize_str("नमस्ते"))

    assert words("marks") == 1
    assert words("qwen2") > 1


def test_auto_tokenizer_loads_the_folder(small_tokenizer, encoder, tmp_path):
    from transformers import AutoTokenizer

    small_tokenizer.write(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert len(loaded) == 500
    assert (loaded.eos_token, loaded.pad_token, loaded.bos_token, loaded.unk_token) == (
        EOS_TOKEN,
        PAD_TOKEN,
        None,
        None,
    )
    assert loaded.chat_template is None
    assert loaded.convert_tokens_to_ids(list(CHAT_TOKENS)) == [2, 3]
    assert set(CHAT_TOKENS) <= set(loaded.all_special_tokens)
    for text in ("The dog doesn't ,  sleep .\n\n 12345", "字カ・ー नमस्ते", " lead and trail "):
        ids = encoder.encode([text])[0][:-1].tolist()
        assert loaded(text)["input_ids"] == ids
        assert loaded.decode(ids) == text
