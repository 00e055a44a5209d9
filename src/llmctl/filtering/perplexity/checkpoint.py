"""Perplexity under a trained transformer instead of an n-gram model: far slower, and as good a judge as it is a model.

Documents are scored one by one, on the CPU with one thread, so that a score does not depend on its neighbours, the
blocks or the number of workers. The beginning of a document counts, in pieces as long as the model's context.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.inputs import Input, open_input
from llmctl.errors import UserError
from llmctl.text.surprise import WINDOW

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "model"
# A transformer takes its time; this much of a document tells how it is written.
MAX_TOKENS = 512
# A character has no more than this many bytes, and a token seldom more characters.
_MAX_CHARS = 16 * MAX_TOKENS


def open_checkpoint(path: Any) -> Input:
    """Open a finished llmctl run, or a Hugging Face folder, as an input of a stage."""
    return open_input(path, role="perplexity model", kinds=(KIND,), payload="model/")


@lru_cache(maxsize=1)
def read_checkpoint(root: str, fingerprint: str) -> tuple[Any, Any]:
    """Read model and tokenizer; once per process.

    Args:
        root: a run or a Hugging Face folder.
        fingerprint: of what lies there.

    Raises:
        UserError: no such model, or no tokenizer beside it.
    """
    from tokenizers import Tokenizer

    from llmctl.model.huggingface import find_model_folder, load_model

    folder = find_model_folder(root)
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as failure:  # tokenizers raises bare exceptions
        raise UserError(f"{folder} has no tokenizer that can be read ({failure})", "give a folder with both") from None
    model = load_model(folder).eval()
    if tokenizer.get_vocab_size() > model.config.vocab_size:
        raise UserError(f"the tokenizer in {folder} has more tokens than the model", "they belong to different models")
    tokenizer.no_truncation()
    return model, tokenizer


def checkpoint_surprise(column: pa.Array | pa.ChunkedArray, root: str, fingerprint: str) -> dict[str, np.ndarray]:
    """Measure how surprising documents are to a transformer; columns as of `text.surprise.surprise`."""
    import torch

    model, tokenizer = read_checkpoint(root, fingerprint)
    length = min(int(model.config.max_seq_len), MAX_TOKENS + 1)
    names = ("tokens", "total", "window_count", "window_sum", "window_squares")
    found = {name: np.zeros(len(column)) for name in names}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for row, text in enumerate(column.to_pylist()):
            ids = tokenizer.encode(text[:_MAX_CHARS], add_special_tokens=False).ids[: MAX_TOKENS + 1]
            surprises = _surprises(model, ids, length)
            windows = surprises[: len(surprises) // WINDOW * WINDOW].reshape(-1, WINDOW).mean(axis=1)
            values = (len(surprises), surprises.sum(), len(windows), windows.sum(), (windows * windows).sum())
            for name, value in zip(names, values, strict=True):
                found[name][row] = value
    finally:
        torch.set_num_threads(threads)
    return found


def _surprises(model: Any, ids: list[int], length: int) -> np.ndarray:
    """Return the surprise of every token but the first, float64; pieces overlap by one token."""
    import torch

    parts = [np.zeros(0)]
    with torch.inference_mode():
        for start in range(0, max(len(ids) - 1, 0), length - 1):
            piece = torch.tensor([ids[start : start + length]])
            logits = model.logits(model(piece[:, :-1]))[0].float()
            parts.append(torch.nn.functional.cross_entropy(logits, piece[0, 1:], reduction="none").double().numpy())
    return np.concatenate(parts)
