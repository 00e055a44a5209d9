"""A trained classifier on disk and at work: weights as safetensors, everything else as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.files import FileRecord, atomic_file, write_json
from llmctl.artifacts.inputs import Input, open_input
from llmctl.errors import UserError
from llmctl.text.grams import CHAR_ORDERS, MAX_CHARS, WORD_ORDERS, score_documents

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "classifier"
WEIGHTS_NAME, DESCRIPTION_NAME = "weights.safetensors", "classifier.json"
# Changes when the features of a text change: weights of another version mean nothing.
FEATURES_VERSION = 1


@dataclass(frozen=True)
class Description:
    """What is known of a classifier beside its weights.

    Attributes:
        label: what the score is the probability of.
        bias: added to the normalised sum of weights.
        slope, offset: the calibration: probability = 1 / (1 + exp(−(slope · margin + offset))).
        threshold: the probability over which the wanted precision is reached; None if it is not reached anywhere.
        precision: the wanted precision.
    """

    label: str
    bias: float
    slope: float
    offset: float
    threshold: float | None
    precision: float
    features_version: int = FEATURES_VERSION
    char_orders: int = CHAR_ORDERS
    word_orders: int = WORD_ORDERS
    max_chars: int = MAX_CHARS


@dataclass(frozen=True)
class Classifier:
    """A classifier ready to score."""

    weights: np.ndarray
    about: Description

    def margins(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the model's raw scores, float64, NaN for texts without any character to go by."""
        sums, counts = score_documents(data, offsets, self.weights, self.about.max_chars)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(counts > 0, sums / np.sqrt(counts), np.nan) + self.about.bias

    def probabilities(self, column: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Return the probability of the label for every text, float64, NaN for empty ones."""
        from llmctl.text.buffers import text_buffers

        return calibrated(self.margins(*text_buffers(column)), self.about.slope, self.about.offset)


def calibrated(margins: np.ndarray, slope: float, offset: float) -> np.ndarray:
    """Return probabilities for raw scores."""
    # tanh does not overflow, and is the same function.
    return 0.5 * (1.0 + np.tanh(0.5 * (slope * margins + offset)))


def write_classifier(root: Path, classifier: Classifier, report: dict[str, Any]) -> list[FileRecord]:
    """Write the files of a classifier."""
    from safetensors.numpy import save

    with atomic_file(root / WEIGHTS_NAME) as out:
        out.write(save({"weights": np.ascontiguousarray(classifier.weights, np.float32)}))
    description = {field.name: getattr(classifier.about, field.name) for field in fields(Description)}
    return [out.record(WEIGHTS_NAME), write_json(root, DESCRIPTION_NAME, {**description, "report": report})]


def open_classifier(name: str, path: Path | str) -> Input:
    """Open a classifier as an input of a stage.

    Raises:
        UserError: the folder is not a classifier.
    """
    return open_input(path, role=f"classifier {name}", kinds=(KIND,), raw=False, payload="")


@lru_cache(maxsize=8)
def read_classifier(root: str, fingerprint: str) -> Classifier:
    """Read a classifier; once per process.

    Args:
        root: its folder.
        fingerprint: of its manifest.

    Raises:
        UserError: damaged files, or features of another version.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        values = json.loads((Path(root) / DESCRIPTION_NAME).read_bytes())
        about = Description(**{field.name: values[field.name] for field in fields(Description)})
        weights = load_file(Path(root) / WEIGHTS_NAME)["weights"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as failure:
        raise UserError(f"{root} cannot be read as a classifier ({failure})", "train it again") from None
    orders = (about.features_version, about.char_orders, about.word_orders)
    if orders != (FEATURES_VERSION, CHAR_ORDERS, WORD_ORDERS):
        raise UserError(f"{root} was made for features of another version", "train it again with this llmctl")
    numbers = (about.bias, about.slope, about.offset, float(np.abs(weights).sum()))
    if weights.ndim != 1 or len(weights) & (len(weights) - 1) or not all(math.isfinite(value) for value in numbers):
        raise UserError(f"{root} holds weights that are none of a classifier", "train it again")
    return Classifier(weights.astype(np.float32), about)
