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


def tiny_model(folder: Any, *, seed: int = 1, hidden_size: int = 48, max_seq_len: int = 256, **shape: Any) -> Any:
    """Write a small untrained model with the chat tokenizer, as `llmctl pretrain` would; return its folder."""
    from llmctl.model.config import ModelConfig
    from llmctl.model.huggingface import save_model
    from llmctl.model.transformer import Transformer

    config = ModelConfig(
        vocab_size=320,
        num_layers=2,
        hidden_size=hidden_size,
        num_heads=4,
        num_kv_heads=2,
        ffn_hidden_size=2 * hidden_size,
        max_seq_len=max_seq_len,
        **shape,
    )
    tokenizer = folder.parent / f"{folder.name}-tokenizer"
    byte_tokenizer().save_pretrained(str(tokenizer))
    save_model(Transformer(config, seed=seed), folder, tokenizer_folder=tokenizer)
    return folder


NAMES = ("cat", "dog", "fox", "owl", "bee", "ant", "cow", "hen", "pig", "elk")


def conversations(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return simple conversations that a tiny model can learn, all different from each other."""
    found = []
    for number in range(first, first + count):
        one, two, three = (NAMES[number // step % 10] for step in (1, 10, 100))
        turns = [
            {"role": "user", "content": f"hello {one} {two} {three}"},
            {"role": "assistant", "content": f"the {one}"},
        ]
        found.append({"messages": turns})
    return found


def write_lines(path: Any, records: list[dict[str, Any]]) -> Any:
    """Write records as JSON lines; return the path."""
    import json

    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
