"""Perplexity of texts, weighted by tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from llmctl import console
from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.raw.read import read_block
from llmctl.errors import UserError
from llmctl.evaluation.config import EvalConfig
from llmctl.training.losses.next_token import IGNORE_INDEX
from llmctl.training.respond import Responder

LONGEST_WINDOW = 2048


def perplexity(responder: Responder, path: Path, config: EvalConfig) -> dict[str, Any]:
    """Return perplexity, bits per byte and what they are the mean of.

    Texts are cut into windows; every token but a text's first is predicted once, from what stands before it in its
    window. A tokenizer that puts a token at the beginning of each text does so here, and the first word counts too.

    Raises:
        UserError: no text there.
    """
    limit = responder.model.config.max_seq_len or LONGEST_WINDOW
    seq_len = min(config.seq_len or LONGEST_WINDOW, limit)
    total, tokens, num_bytes, documents = 0.0, 0, 0, 0
    invalid: list[int] = []
    with console.progress("perplexity", None, "texts") as shown:
        for text in _texts(path, config.max_documents, invalid):
            ids = responder.template.tokenizer(text)["input_ids"]
            for start in range(0, len(ids) - 1, seq_len):
                total += _negative_log_likelihood(responder, ids[start : start + seq_len + 1])
            tokens += max(len(ids) - 1, 0)
            num_bytes += len(text.encode("utf-8", "replace"))
            documents += 1
            shown.advance()
    if not tokens:
        raise UserError(f"{path} holds no text to measure", "give files or a folder with texts")
    if invalid:
        console.warning(f"{len(invalid):,} records cannot be read: left out")
    probe = responder.template.tokenizer("a")["input_ids"]
    return {
        "perplexity": math.exp(min(total / tokens, 700.0)),
        "nats_per_token": total / tokens,
        "bits_per_byte": total / math.log(2) / max(num_bytes, 1),
        "tokens": tokens,
        "documents": documents,
        "invalid": len(invalid),
        "seq_len": seq_len,
        "bos": bool(probe) and probe[0] == responder.template.tokenizer.bos_token_id,
    }


def _texts(path: Path, most: int, invalid: list[int]) -> Iterator[str]:
    options = ReadOptions()
    given = 0
    for block in plan_blocks(open_input(path, role="text", kinds=("documents",)), options):
        batch = read_block(block, options)
        invalid += [1] * len(batch.invalid)
        for text in batch.table.column("text"):
            yield text.as_py()
            given += 1
            if given == most:
                return


@torch.no_grad()
def _negative_log_likelihood(responder: Responder, ids: list[int]) -> float:
    device = next(responder.model.parameters()).device
    row = torch.tensor([ids], device=device)
    hidden = responder.model(row[:, :-1])
    labels = row[:, 1:]
    assert not bool((labels == IGNORE_INDEX).any())
    return float(responder.model.negative_log_likelihood(hidden, labels))
