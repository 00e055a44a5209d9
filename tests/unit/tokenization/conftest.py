"""A small vocabulary, trained once."""

from __future__ import annotations

import pytest

from llmctl.tokenization.config import TokenizeConfig
from llmctl.tokenization.folder import TokenizerFolder
from llmctl.tokenization.train import train

TEXTS = [
    "The quick brown fox jumps over the lazy dog. It's 2024, isn't it?\n\nThe dog sleeps; the fox doesn't.\n",
    "Der schnelle braune Fuchs springt über den faulen Hund. Müßiggang ist aller Laster Anfang.\n",
    "敏捷的棕色狐狸跳过了懒狗。今天天气很好,我们去公园散步。\n",
    "ภาษาไทยเขียนติดกันโดยไม่มีช่องว่าง\nनमस्ते दुनिया\n",
    "def main():\n    for index in range(10):\n        print(index, 'value', index * 2)\n",
] * 20


@pytest.fixture(scope="session")
def training_texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def small_config() -> TokenizeConfig:
    return TokenizeConfig(vocab_size=500)


@pytest.fixture(scope="session")
def small_tokenizer(small_config) -> TokenizerFolder:
    """A tokenizer of 500 tokens over several scripts."""
    return train(TEXTS, small_config, small_config.vocab_size)
