"""Fit clusters on a sample of documents, and give every other document the cluster of its neighbours.

Hashed words and pairs of words → logarithmic counts × inverse document frequency, unit length → truncated singular
value decomposition, unit length → HDBSCAN (Campello, Moulavi, Sander 2013). One thread of linear algebra, so that the
numbers do not depend on how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmctl.filtering.clusters.config import ClusterConfig
from llmctl.text.features import feature_counts

if TYPE_CHECKING:
    from scipy import sparse

FEATURE_BITS = 18
_VOTERS = 5
_CLUSTER_REFERENCES = 200  # of a cluster's documents, that others are compared with
_OTHER_REFERENCES = 2000  # of the documents outside all clusters
_ROWS_AT_ONCE = 4096


@dataclass
class ClusterModel:
    """What a document's cluster is found with.

    Attributes:
        weights: float32 of shape [features], inverse document frequencies.
        components: float32 of shape [features, dimensions].
        references: float32 of shape [references, dimensions], unit vectors.
        labels: int32, their clusters; 0 for none.
    """

    weights: np.ndarray
    components: np.ndarray
    references: np.ndarray
    labels: np.ndarray

    def place(self, tokens: np.ndarray, ends: np.ndarray, words: int) -> np.ndarray:
        """Return the unit vectors of documents, float32 of shape [documents, dimensions]; zero without features."""
        vectors = np.zeros((len(ends) - 1, self.components.shape[1]), np.float32)
        for begin in range(0, len(vectors), _ROWS_AT_ONCE):
            rows = weighted(tokens, ends[begin : begin + _ROWS_AT_ONCE + 1], words, self.weights)
            vectors[begin : begin + _ROWS_AT_ONCE] = unit_rows(rows @ self.components)
        return vectors

    def assign(self, vectors: np.ndarray) -> np.ndarray:
        """Return the cluster that most of the nearest references have, int32; 0 for none."""
        found = np.zeros(len(vectors), np.int32)
        voters = min(_VOTERS, len(self.labels))
        if voters == 0 or not self.labels.any():
            return found
        for begin in range(0, len(vectors), _ROWS_AT_ONCE):
            part = vectors[begin : begin + _ROWS_AT_ONCE]
            likeness = part @ self.references.T
            nearest = np.argpartition(-likeness, voters - 1, axis=1)[:, :voters]
            # Equal likeness is decided by the order of the references.
            closeness = np.take_along_axis(likeness, nearest, axis=1)
            order = np.lexsort((nearest, -closeness), axis=1)
            labels = self.labels[np.take_along_axis(nearest, order, axis=1)]
            votes = (labels[:, :, None] == labels[:, None, :]).sum(axis=2)
            winner = np.take_along_axis(labels, votes.argmax(axis=1)[:, None], axis=1)[:, 0]
            found[begin : begin + _ROWS_AT_ONCE] = np.where(part.any(axis=1), winner, 0)
        return found


@dataclass
class Fitted:
    """A model and what it was fitted on.

    Attributes:
        model: for all other documents.
        labels: int32, clusters of the sample, from 1, the largest first; 0 for none.
        vectors: float32, unit vectors of the sample.
        features: the weighted features of the sample, one row a document.
    """

    model: ClusterModel
    labels: np.ndarray
    vectors: np.ndarray
    features: sparse.csr_matrix


def weighted(tokens: np.ndarray, ends: np.ndarray, words: int, weights: np.ndarray) -> sparse.csr_matrix:
    """Return the weighted features of documents, rows of unit length."""
    from scipy import sparse

    features, counts, row_ends = feature_counts(tokens, ends, words, FEATURE_BITS)
    values = (1.0 + np.log(counts)) * weights[features]
    rows = np.repeat(np.arange(len(row_ends) - 1), np.diff(row_ends))
    lengths = np.sqrt(np.bincount(rows, weights=values * values, minlength=len(row_ends) - 1))
    values = (values / np.maximum(lengths, 1e-12)[rows]).astype(np.float32)
    return sparse.csr_matrix((values, features, row_ends), shape=(len(row_ends) - 1, 1 << FEATURE_BITS))


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Return rows of unit length, float32; zero stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def fit(tokens: np.ndarray, ends: np.ndarray, config: ClusterConfig) -> Fitted:
    """Find the clusters of a sample.

    Args:
        tokens, ends: of the sample, from `text.skeletons.token_sequences`.
        config: sizes and seed.
    """
    from sklearn.decomposition import TruncatedSVD
    from threadpoolctl import threadpool_limits

    documents = len(ends) - 1
    features, _, _ = feature_counts(tokens, ends, config.words, FEATURE_BITS)
    frequencies = np.bincount(features, minlength=1 << FEATURE_BITS)
    # A feature of one document says nothing about a kind, and one of all documents neither.
    weights = np.where(frequencies > 1, np.log((1.0 + documents) / (1.0 + frequencies)), 0.0).astype(np.float32)
    matrix = weighted(tokens, ends, config.words, weights)
    dimensions = min(config.dimensions, documents - 1)
    if not matrix.count_nonzero():  # no document shares a word with another
        components = np.zeros((1 << FEATURE_BITS, dimensions), np.float32)
        nowhere = np.zeros((documents, dimensions), np.float32)
        labels = np.zeros(documents, np.int32)
        return Fitted(ClusterModel(weights, components, nowhere, labels), labels, nowhere, matrix)
    with threadpool_limits(1):
        svd = TruncatedSVD(dimensions, n_iter=4, random_state=config.seed).fit(matrix)
        components = np.ascontiguousarray(svd.components_.T.astype(np.float32))
        vectors = unit_rows(matrix @ components)
        labels = _largest_first(_dense_groups(vectors, config))
    chosen = _references(labels)
    return Fitted(ClusterModel(weights, components, vectors[chosen], labels[chosen]), labels, vectors, matrix)


def _dense_groups(vectors: np.ndarray, config: ClusterConfig) -> np.ndarray:
    from sklearn.cluster import HDBSCAN

    labels = np.full(len(vectors), -1, np.int64)
    rows = np.flatnonzero(vectors.any(axis=1))
    if len(rows) > max(config.min_size, config.neighbours):
        grouping = HDBSCAN(min_cluster_size=config.min_size, min_samples=config.neighbours, n_jobs=1, copy=True)
        labels[rows] = grouping.fit(vectors[rows].astype(np.float64)).labels_
    return labels


def _largest_first(labels: np.ndarray) -> np.ndarray:
    """Number the clusters from 1, the largest first, then by their first member; no cluster is 0."""
    numbers, firsts, sizes = np.unique(labels[labels >= 0], return_index=True, return_counts=True)
    renamed = np.zeros(len(numbers) + 1, np.int32)
    renamed[1 + numbers[np.lexsort((firsts, -sizes))]] = np.arange(len(numbers)) + 1
    return renamed[labels + 1]


def _references(labels: np.ndarray) -> np.ndarray:
    """Return the positions of the documents that others are compared with, ascending."""
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        chosen.append(rows[: _CLUSTER_REFERENCES if label else _OTHER_REFERENCES])  # the sample is in random order
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
