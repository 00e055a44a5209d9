"""Small tokenizers made on the spot: byte-level BPE with and without chat tokens."""

from __future__ import annotations

from typing import Any

CHAT_TOKENS = ["<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"]


def byte_tokenizer(special: list[str] | None = None, *, chat_template: str | None = None, **tokens: Any) -> Any:
    """Return a byte-level BPE tokenizer as transformers gives it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = CHAT_TOKENS if special is None else special
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["user assistant system hello world\n\n\n the quick brown fox"] * 3, trainer)
    named = {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>"} if special == CHAT_TOKENS else {}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **{**named, **tokens})
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer
