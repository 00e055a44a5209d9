"""Scores that models give to documents, as columns beside the statistics: language, classifiers, perplexity.

A detector is a function of the texts and of a model; its columns stand in ``attributes/`` under their names, with what
they depend on in the file's metadata, so that a later run takes them over where that is the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llmctl.filtering import languages, lexicon, lists
from llmctl.filtering.classifiers.model import read_classifier
from llmctl.filtering.perplexity import model as perplexity
from llmctl.filtering.rules import CLASSIFIER_PREFIX, load_rule
from llmctl.filtering.scores import ATTRIBUTES_FOLDER, CONTENT_KEY, StoredScores

if TYPE_CHECKING:
    from llmctl.artifacts.raw.blocks import DocumentBatch
    from llmctl.filtering.config import FilterConfig
    from llmctl.filtering.models import ModelFolder, Models
    from llmctl.filtering.policy import Policy

DETECTIONS_KEY = b"llmctl.detections"
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Detector:
    """One model at work.

    Attributes:
        name: unique in a run.
        identity: what its columns depend on beside the texts and what the records say.
        columns: the columns it gives.
        detect: gives them for a table of documents.
    """

    name: str
    identity: str
    columns: tuple[str, ...]
    detect: Callable[[pa.Table], Columns]


def detectors_for(
    config: FilterConfig, policies: Sequence[Policy], models: Models, collected: Collection[str] = ()
) -> list[Detector]:
    """Return the detectors at work: those that the policies and the statistics need, and every given model.

    Args:
        config, policies: what is asked for.
        models: those given.
        collected: passes over the corpus that have columns already.
    """
    found = []
    scope = _language_scope(config, policies)
    if scope != "off":
        found.append(_language_detector(scope))
    found += [_classifier_detector(folder) for folder in models.classifiers]
    if models.perplexity is not None and "perplexity" not in collected:
        found.append(_perplexity_detector(models.perplexity))
    found += [_phrase_detector(rule, policies) for rule in lexicon.phrase_rules(policies)]
    if any(lists.RULE in policy.rules for policy in policies):
        found.append(_address_detector(policies))
    return found


def _needed(policies: Sequence[Policy]) -> set[str]:
    return {column for policy in policies for name in policy.document_rules for column in load_rule(name).COLUMNS}


def _language_scope(config: FilterConfig, policies: Sequence[Policy]) -> str:
    return "all" if _needed(policies) & set(languages.COLUMNS) else config.detect_language


def _language_detector(scope: str) -> Detector:
    def detect(table: pa.Table) -> Columns:
        rows = None if scope == "all" else ~declared(table)
        return languages.detect_languages(table.column("text"), rows)

    return Detector("language", languages.identity(scope), languages.COLUMNS, detect)


def _classifier_detector(folder: ModelFolder) -> Detector:
    name = f"{CLASSIFIER_PREFIX}{folder.name}"

    def detect(table: pa.Table) -> Columns:
        return {name: read_classifier(folder.root, folder.fingerprint).probabilities(table.column("text"))}

    return Detector(name, folder.fingerprint, (name,), detect)


def _perplexity_detector(folder: ModelFolder) -> Detector:
    def detect(table: pa.Table) -> Columns:
        return perplexity.perplexities_under(table.column("text"), folder.root, folder.fingerprint)

    return Detector("perplexity", folder.fingerprint, perplexity.COLUMNS, detect)


def _phrase_detector(rule: str, policies: Sequence[Policy]) -> Detector:
    def detect(table: pa.Table) -> Columns:
        return lexicon.count_listed(table, policies, rule)

    return Detector(rule, lexicon.identity(policies, rule), (load_rule(rule).PHRASES_COLUMN,), detect)


def _address_detector(policies: Sequence[Policy]) -> Detector:
    def detect(table: pa.Table) -> Columns:
        return lists.blocked(table, policies)

    return Detector(lists.RULE, lists.identity(policies), ("url_blocked",), detect)


def declared(table: pa.Table) -> np.ndarray:
    """Return which records name their language, bool of shape [documents]."""
    return np.asarray(pc.greater(pc.utf8_length(table.column("lang")), 0).fill_null(False).to_numpy())


def detect_all(
    detectors: Sequence[Detector], batch: DocumentBatch, part: str, scores: StoredScores | None
) -> tuple[Columns, int]:
    """Return the columns of all detectors, and how many of them an earlier run gave.

    Args:
        detectors: from `detectors_for`.
        batch: the documents.
        part: name of the block's files.
        scores: an earlier run.
    """
    columns: Columns = {}
    reused = 0
    known = stored_identities(scores, part, batch.content_hash) if scores else {}
    for detector in detectors:
        stored = None
        if scores and known.get(detector.name) == detector.identity:
            stored = _stored(scores, part, detector.columns)
        reused += stored is not None
        columns |= detector.detect(batch.table) if stored is None else stored
    return columns, reused


def stored_identities(scores: StoredScores, part: str, content: str) -> dict[str, str]:
    """Return what the detectors' columns of an earlier run's part depend on; nothing if it is of another content."""
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(Path(scores.root) / ATTRIBUTES_FOLDER / f"{part}.parquet").metadata or {}
        if metadata.get(CONTENT_KEY) != content.encode():
            return {}
        found = json.loads(metadata.get(DETECTIONS_KEY, b"{}"))
    except (OSError, pa.ArrowException, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _stored(scores: StoredScores, part: str, names: Sequence[str]) -> Columns | None:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(Path(scores.root) / ATTRIBUTES_FOLDER / f"{part}.parquet", columns=list(names))
    except (OSError, pa.ArrowException):
        return None
    return (
        {name: _from_table(name, table.column(name)) for name in names}
        if set(names) <= set(table.schema.names)
        else None
    )


def to_table(columns: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
    """Return the columns as they stand in attributes/: languages as text, NaN as null."""
    return {
        name: languages.language_names(values)
        if name == "detected_language"
        else pa.array(values, mask=np.isnan(values))
        for name, values in columns.items()
    }


def _from_table(name: str, column: pa.ChunkedArray) -> np.ndarray:
    if name == "detected_language":
        return languages.language_codes(column)
    return np.asarray(column.cast(pa.float64()).fill_null(np.nan).to_numpy())


def with_identities(table: pa.Table, detectors: Sequence[Detector]) -> pa.Table:
    """Return the table of attributes with what the detectors' columns depend on."""
    if not detectors:
        return table
    identities = json.dumps({detector.name: detector.identity for detector in detectors}, sort_keys=True)
    return table.replace_schema_metadata({**(table.schema.metadata or {}), DETECTIONS_KEY: identities.encode()})


def fill_languages(table: pa.Table, columns: Mapping[str, np.ndarray]) -> tuple[pa.Table, np.ndarray]:
    """Give records without a language the detected one, if that is sure enough.

    Returns:
        The table, and which records got a language (bool).
    """
    named = declared(table)
    if "detected_language" not in columns:
        return table, np.zeros(table.num_rows, np.bool_)
    sure = ~named & (columns["detected_language"] >= 0) & (columns["language_score"] >= languages.SURE_SCORE)
    if not sure.any():
        return table, sure
    position = table.schema.get_field_index("lang")
    names = languages.language_names(np.where(sure, columns["detected_language"], languages.NO_LANGUAGE))
    lang = table.column("lang")
    filled = pc.if_else(pa.array(sure), pa.chunked_array([names]).cast(lang.type), lang)
    return table.set_column(position, table.schema.field(position), filled), sure
