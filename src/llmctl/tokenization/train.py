"""Train a byte-level BPE vocabulary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from llmctl import console
from llmctl.errors import UserError
from llmctl.tokenization.config import CHAT_TOKENS, EOS_TOKEN, PAD_TOKEN, TokenizeConfig
from llmctl.tokenization.folder import TokenizerFolder
from llmctl.tokenization.splits import PATTERNS

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def special_tokens(config: TokenizeConfig) -> list[str]:
    """Return the special tokens of a trained tokenizer; they take the first ids."""
    return [EOS_TOKEN, PAD_TOKEN, *CHAT_TOKENS, *config.special_tokens]


def untrained(config: TokenizeConfig) -> Tokenizer:
    """Return the tokenizer around an empty vocabulary: normalisation, word split and bytes."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    if config.normalization == "nfc":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS[config.split]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train(texts: Iterable[str], config: TokenizeConfig, vocab_size: int) -> TokenizerFolder:
    """Train on texts, read once; the same texts in the same order give the same vocabulary.

    Args:
        texts: the training sample; special tokens inside it are plain text.
        config: split, normalisation and special tokens.
        vocab_size: tokens of the result, special tokens included.

    Raises:
        UserError: the texts do not give that many tokens.
    """
    from tokenizers import pre_tokenizers, trainers

    tokenizer = untrained(config)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=special_tokens(config),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    _interruptible(lambda: tokenizer.train_from_iterator(texts, trainer))
    possible = tokenizer.get_vocab_size()
    if possible < vocab_size:
        raise UserError(
            f"the text gives {possible:,} tokens, not {vocab_size:,}: no further pair occurs "
            f"{config.min_frequency} times or more",
            f"give --vocab-size {possible} or less, more text, or a lower --min-frequency",
        )
    console.info(f"trained a vocabulary of {possible:,} tokens")
    return TokenizerFolder(tokenizer.to_str(pretty=True), EOS_TOKEN, PAD_TOKEN, [*CHAT_TOKENS, *config.special_tokens])


def _interruptible(work: Callable[[], None]) -> None:
    """Run long work of a library in another thread, so that Ctrl-C ends it at once and not when the library returns."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as failure:  # handed to the main thread
            failures.append(failure)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(timeout=0.2)
    if failures:
        raise failures[0]
