"""Fit a linear classifier on hashed n-grams, judge it by cross-validation, calibrate it and choose a threshold.

Logistic regression with an L2 penalty (scikit-learn, liblinear) on counts divided by the root of the document's number
of features; Platt's sigmoid (Platt 1999, with his smoothed targets) on the scores of documents that the model had not
seen. Equal texts are always in the same split, so that no document is judged by a model that has seen it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl import console
from llmctl.errors import UserError
from llmctl.filtering.classifiers.examples import Examples
from llmctl.filtering.classifiers.model import Classifier, Description, calibrated
from llmctl.text.buffers import text_buffers
from llmctl.text.grams import CHAR_ORDERS, MAX_CHARS, WORD_ORDERS, document_features
from llmctl.text.hashing import hash_slices

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from llmctl.filtering.classifiers.config import ClassifierConfig

BINS = 10
# Under this many examples of a kind, the figures are no more than a hint.
ROUGH_EXAMPLES = 100
# Beyond this many the fit would take more than about 3 GB; long documents are sampled down to it.
MAX_FEATURES = 120_000_000


@dataclass(frozen=True)
class Trained:
    """A classifier and what is known about it."""

    classifier: Classifier
    report: dict[str, Any]


def train(examples: Examples, config: ClassifierConfig) -> Trained:
    """Train a classifier.

    Raises:
        UserError: too few different examples of a kind to judge anything.
    """
    examples = _bounded(examples, config.seed)
    groups, kinds, conflicts = _groups(examples)
    splits = _split_count(kinds, examples.label, config)
    matrix = feature_matrix(examples, config.features)
    truth = examples.positive
    folds = _folds(groups, kinds, splits, config.seed)
    margins, aucs = _cross_validate(matrix, truth, folds, splits, config)
    weights = _weights(truth, config.expected_share)
    held_out = np.empty(len(truth))
    for fold in range(splits):
        inside = folds == fold
        held_out[inside] = calibrated(margins[inside], *_platt(margins[~inside], truth[~inside], weights[~inside]))
    slope, offset = _platt(margins, truth, weights)
    coefficients, bias = _fit(matrix, truth, config)
    choice = choose_threshold(calibrated(margins, slope, offset), truth, weights, config.precision)
    about = Description(examples.label, bias, slope, offset, choice["threshold"], config.precision)
    report = {
        "label": examples.label,
        "examples": {
            "positive": int(truth.sum()),
            "rest": int((~truth).sum()),
            "different_texts": len(kinds),
            "texts_with_both_labels": conflicts,
            **{name: examples.counts.get(name, 0) for name in ("empty", "without_label", "invalid", "left_out")},
        },
        "auc": {"mean": _rounded(np.mean(aucs)), "least": _rounded(min(aucs)), "by_split": [_rounded(x) for x in aucs]},
        "reliability": reliability(held_out, truth, weights),
        "threshold": choice,
        "expected_share": _rounded(float(weights[truth].sum() / weights.sum())),
    }
    return Trained(Classifier(coefficients, about), report)


def _bounded(examples: Examples, seed: int, most: int = MAX_FEATURES) -> Examples:
    """Leave out documents, drawn by the seed, where all of them would not fit in memory."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chars = np.minimum(pc.utf8_length(examples.texts).to_numpy(), MAX_CHARS)
    features = int(chars.sum()) * (CHAR_ORDERS + WORD_ORDERS)
    if features <= most:
        return examples
    share = most / features
    kept = np.flatnonzero(np.random.default_rng([seed, 7]).random(len(chars)) < share)
    left_out = len(chars) - len(kept)
    console.info(f"{left_out:,} examples are left out: all of them would not fit in memory")
    counts = {**examples.counts, "left_out": examples.counts.get("left_out", 0) + left_out}
    return Examples(examples.texts.take(pa.array(kept)), examples.positive[kept], examples.label, counts)


def feature_matrix(examples: Examples, bits: int) -> csr_matrix:
    """Return counts over the root of their sum, float64 of shape [documents, 2 ** bits]."""
    from scipy.sparse import csr_matrix

    features, ends = document_features(*text_buffers(examples.texts), bits)
    starts = np.concatenate([[0], ends])
    lengths = np.maximum(np.diff(starts), 1)
    values = np.repeat(1 / np.sqrt(lengths), np.diff(starts))
    matrix = csr_matrix((values, features.astype(np.int32), starts), shape=(len(examples.texts), 1 << bits))
    matrix.sum_duplicates()
    return matrix


def _groups(examples: Examples) -> tuple[np.ndarray, np.ndarray, int]:
    """Number equal texts alike; return (group of each document, label of each group, groups with both labels)."""
    first, second = hash_slices(*text_buffers(examples.texts), np.uint64(0))
    keys = np.rec.fromarrays([first, second])
    _, starts, groups = np.unique(keys, return_index=True, return_inverse=True)
    groups = groups.ravel()
    positives = np.bincount(groups, weights=examples.positive)
    mixed = (positives > 0) & (positives < np.bincount(groups))
    return groups, examples.positive[starts], int(mixed.sum())


def _split_count(kinds: np.ndarray, label: str, config: ClassifierConfig) -> int:
    fewest = int(min(kinds.sum(), (~kinds).sum()))
    scarce = f"`{label}`" if kinds.sum() <= (~kinds).sum() else "the rest"
    if fewest < 2:
        raise UserError(
            f"there are {fewest} different texts of {scarce}, and a classifier needs at least 2 to be judged",
            "give more examples; a few hundred of each kind make a useful classifier",
        )
    splits = min(config.splits, fewest)
    if splits < config.splits:
        console.warning(f"only {fewest} different texts of {scarce}: {splits} splits instead of {config.splits}")
    if fewest < ROUGH_EXAMPLES:
        console.warning(
            f"only {fewest:,} different texts of {scarce}: take all figures as rough",
            "a few hundred examples of each kind make a useful classifier",
        )
    return splits


def _folds(groups: np.ndarray, kinds: np.ndarray, splits: int, seed: int) -> np.ndarray:
    """Deal the groups of each kind out to the splits; return the split of each document."""
    draw = np.random.default_rng([seed, 5])
    split_of_group = np.empty(len(kinds), np.int64)
    for kind in (False, True):
        members = np.flatnonzero(kinds == kind)
        split_of_group[draw.permutation(members)] = np.arange(len(members)) % splits
    return split_of_group[groups]


def _fit(matrix: csr_matrix, truth: np.ndarray, config: ClassifierConfig) -> tuple[np.ndarray, float]:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=config.strength, solver="liblinear", max_iter=300, tol=1e-3, random_state=config.seed)
    model.fit(matrix, truth)
    return model.coef_[0].astype(np.float32), float(model.intercept_[0])


def _cross_validate(
    matrix: csr_matrix, truth: np.ndarray, folds: np.ndarray, splits: int, config: ClassifierConfig
) -> tuple[np.ndarray, list[float]]:
    from sklearn.metrics import roc_auc_score

    margins = np.empty(len(truth))
    aucs = []
    with console.progress("splits", splits, "splits") as shown:
        for fold in range(splits):
            inside = folds == fold
            weights, bias = _fit(matrix[~inside], truth[~inside], config)
            margins[inside] = matrix[inside] @ weights.astype(np.float64) + bias
            if 0 < truth[inside].sum() < inside.sum():
                aucs.append(float(roc_auc_score(truth[inside], margins[inside])))
            shown.advance(1)
    return margins, aucs


def _weights(truth: np.ndarray, expected_share: float | None) -> np.ndarray:
    """Return a weight for each document so that the positive ones have the expected share."""
    if expected_share is None:
        return np.ones(len(truth))
    share = truth.mean()
    return np.where(truth, expected_share / share, (1 - expected_share) / (1 - share))


def _platt(margins: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Fit a sigmoid; targets are smoothed, so that perfect separation does not make it a step."""
    from scipy.optimize import minimize

    positives, rest = truth.sum(), (~truth).sum()
    target = np.where(truth, (positives + 1) / (positives + 2), 1 / (rest + 2))

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        logits = parameters[0] * margins + parameters[1]
        value = weights * (np.logaddexp(0, logits) - target * logits)
        error = weights * (calibrated(logits, 1.0, 0.0) - target)
        return float(value.sum()), np.array([(error * margins).sum(), error.sum()])

    # Downhill whatever the data: a slope of 0 or less would turn the order around.
    found = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(1e-6, None), (None, None)])
    return float(found.x[0]), float(found.x[1])


def reliability(probabilities: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Hold predicted probabilities against what came true, in bins of equal width.

    Returns:
        ``bins`` (documents, mean predicted, share that came true), ``error`` (mean distance of the two, weighted by the
        bins' sizes) and ``brier`` (mean squared error).
    """
    which = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    total = np.bincount(which, weights=weights, minlength=BINS)
    predicted = np.bincount(which, weights=weights * probabilities, minlength=BINS)
    happened = np.bincount(which, weights=weights * truth, minlength=BINS)
    counts = np.bincount(which, minlength=BINS)
    bins = [
        {
            "from": number / BINS,
            "to": (number + 1) / BINS,
            "documents": int(counts[number]),
            "predicted": _rounded(predicted[number] / total[number]),
            "true": _rounded(happened[number] / total[number]),
        }
        for number in range(BINS)
        if counts[number]
    ]
    return {
        "bins": bins,
        "error": _rounded(np.abs(predicted - happened).sum() / total.sum()),
        "brier": _rounded((weights * (probabilities - truth) ** 2).sum() / weights.sum()),
    }


def choose_threshold(
    probabilities: np.ndarray, truth: np.ndarray, weights: np.ndarray, precision: float
) -> dict[str, Any]:
    """Return the lowest threshold over which the precision is reached, and what it finds.

    Documents over the threshold are the finds. ``threshold`` is None where no threshold reaches the precision.
    """
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    true = np.cumsum((weights * truth)[order])
    reached = true / np.cumsum(weights[order])
    # Equal probabilities are found together.
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    good = last[reached[last] >= precision]
    if not len(good):
        return {"wanted": precision, "threshold": None, "precision": _rounded(reached[last].max()), "recall": 0.0}
    end = int(good[-1])
    below = ranked[end + 1] if end + 1 < len(ranked) else 0.0
    return {
        "wanted": precision,
        "threshold": float((ranked[end] + below) / 2),
        "precision": _rounded(reached[end]),
        "recall": _rounded(true[end] / true[-1]),
    }


def _rounded(value: Any) -> float:
    return round(float(value), 6)
