"""An n-gram model on disk and at work: n-grams as safetensors, everything else as JSON."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.files import FileRecord, atomic_file, write_json
from llmctl.artifacts.inputs import Input, open_input
from llmctl.errors import UserError
from llmctl.text.buffers import text_buffers
from llmctl.text.surprise import MAX_ORDER, MAX_TOKENS, Table, build_table, surprise

if TYPE_CHECKING:
    import pyarrow as pa

    from llmctl.filtering.perplexity.training import Estimates

KIND = "ngram_model"
NGRAMS_NAME, DESCRIPTION_NAME = "ngrams.safetensors", "model.json"
# Changes when the tokens of a text, their hashes or the columns change.
VERSION = 1
COLUMNS = ("perplexity", "perplexity_variation")
# Of less text there is nothing to say.
MIN_TOKENS = 20
MIN_WINDOWS = 4


def write_model(root: Path, estimates: Estimates, order: int, report: dict[str, Any]) -> list[FileRecord]:
    """Write the files of a model."""
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray] = {
        "keys": estimates.keys.view(np.int64),
        "log_probabilities": estimates.log_probabilities.astype(np.float32),
        "backoffs": estimates.backoffs.astype(np.float32),
    }
    with atomic_file(root / NGRAMS_NAME) as out:
        out.write(save(arrays))
    about = {"version": VERSION, "order": order, "unknown": estimates.unknown, "report": report}
    return [out.record(NGRAMS_NAME), write_json(root, DESCRIPTION_NAME, about)]


def open_model(path: Path | str) -> Input:
    """Open a model as an input of a stage: an n-gram model, a finished llmctl run, or a Hugging Face folder.

    Raises:
        UserError: the folder is none of these.
    """
    from llmctl.filtering.perplexity.checkpoint import open_checkpoint

    if is_ngram_model(str(path)) or not Path(path).is_dir():
        return open_input(path, role="perplexity model", kinds=(KIND,), raw=False, payload="")
    return open_checkpoint(path)


@lru_cache(maxsize=2)
def read_model(root: str, fingerprint: str) -> Table:
    """Read a model; once per process.

    Args:
        root: its folder.
        fingerprint: of its manifest.

    Raises:
        UserError: damaged files, or another version.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        about = json.loads((Path(root) / DESCRIPTION_NAME).read_bytes())
        version, order, unknown = about["version"], int(about["order"]), float(about["unknown"])
        arrays = load_file(Path(root) / NGRAMS_NAME)
        keys, probabilities, backoffs = (arrays[name] for name in ("keys", "log_probabilities", "backoffs"))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as failure:
        raise UserError(f"{root} cannot be read as an n-gram model ({failure})", "train it again") from None
    if version != VERSION:
        raise UserError(f"{root} was made by another version of llmctl", "train it again with this one")
    finite = np.isfinite(probabilities).all() and np.isfinite(backoffs).all() and np.isfinite(unknown)
    if not (
        keys.shape == probabilities.shape == backoffs.shape and keys.ndim == 1 and finite and 1 < order <= MAX_ORDER
    ):
        raise UserError(f"{root} holds numbers that are none of an n-gram model", "train it again")
    return build_table(keys.view(np.uint64), probabilities, backoffs, order, unknown)


def is_ngram_model(root: str) -> bool:
    """Tell whether a folder holds an n-gram model; otherwise it is a transformer."""
    return (Path(root) / NGRAMS_NAME).is_file()


def perplexities_under(column: pa.Array | pa.ChunkedArray, root: str, fingerprint: str) -> dict[str, np.ndarray]:
    """Return the columns of texts under the model of a folder; see `perplexities`."""
    if is_ngram_model(root):
        return perplexities(column, read_model(root, fingerprint))
    from llmctl.filtering.perplexity.checkpoint import checkpoint_surprise

    return _columns(checkpoint_surprise(column, root, fingerprint))


def perplexities(
    column: pa.Array | pa.ChunkedArray, table: Table, max_tokens: int = MAX_TOKENS
) -> dict[str, np.ndarray]:
    """Return the columns of texts.

    Returns:
        ``perplexity``: exp of the mean surprise of the tokens, NaN under `MIN_TOKENS` tokens;
        ``perplexity_variation``: how much the surprise goes up and down: the standard deviation of its mean over
        `WINDOW` tokens, in nats, NaN under `MIN_WINDOWS` windows. Float64 of shape [documents].
    """
    return _columns(surprise(*text_buffers(column), table, max_tokens))


def _columns(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tokens, windows = found["tokens"], found["window_count"]
    with np.errstate(invalid="ignore", divide="ignore"):
        perplexity = np.where(tokens >= MIN_TOKENS, np.exp(found["total"] / tokens), np.nan)
        mean = found["window_sum"] / windows
        variance = np.maximum(found["window_squares"] / windows - mean * mean, 0.0) * windows / (windows - 1)
        variation = np.where(windows >= MIN_WINDOWS, np.sqrt(variance), np.nan)
    return dict(zip(COLUMNS, (perplexity, variation), strict=True))
