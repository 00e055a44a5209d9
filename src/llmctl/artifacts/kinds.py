"""The kinds of artifact, their schema versions and the columns of those that are tables.

A version goes up when a reader of the old version would misread the new one. An older version is upgraded on
reading (add a function to `UPGRADES`), a newer one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmctl.errors import UserError, unknown_name

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Kind:
    """One kind of artifact."""

    name: str
    schema_version: int
    description: str


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("documents", 1, "Parquet files of texts with id, source and language"),
        Kind("tokens", 1, "token ids of documents, with the tokenizer that made them"),
        Kind("shards", 1, "TFRecord files of token ids with an index for random access"),
        Kind("export", 1, "token ids in files of other tools: Megatron, MDS or Parquet"),
        Kind("conversations", 1, "conversations for supervised fine-tuning"),
        Kind("preferences", 1, "ranked answers to prompts"),
        Kind("checkpoint", 1, "weights, optimizer and cursor of a training run"),
        Kind("model", 1, "a training run with its model as a Hugging Face folder"),
        Kind("classifier", 1, "a linear classifier of documents, for filter"),
        Kind("ngram_model", 1, "an n-gram language model that gives documents a perplexity, for filter"),
        Kind("report", 1, "findings and pictures about a run"),
    )
}

# {(kind, old version): function from the old manifest mapping to the next version's}
UPGRADES: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}

COMPRESSION = "zstd"
COMPRESSION_LEVEL = 1
ROW_GROUP_BYTES = 32_000_000


def check_version(kind_name: str, version: int, where: str) -> Kind:
    """Return the kind, or refuse one that this llmctl cannot read.

    Raises:
        UserError: an unknown kind, or a schema newer than this llmctl knows.
    """
    if kind_name not in KINDS:
        raise unknown_name(f"kind of artifact in {where}:", kind_name, KINDS)
    kind = KINDS[kind_name]
    if version > kind.schema_version:
        raise UserError(
            f"{where} has schema {version} of `{kind_name}`, this llmctl reads up to {kind.schema_version}",
            "upgrade llmctl, or make the folder again with this version",
        )
    return kind


def documents_schema() -> pa.Schema:
    """Columns of `documents`; `lang` is null if unknown, `metadata` holds the record's other fields as JSON."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("id", pa.large_string(), nullable=False),
            pa.field("text", pa.large_string(), nullable=False),
            pa.field("source", pa.large_string(), nullable=False),
            pa.field("lang", pa.large_string()),
            pa.field("metadata", pa.large_string()),
        ]
    )


def removed_schema() -> pa.Schema:
    """Columns of `removed`: the deciding reason with value and threshold, and every reason as JSON in `all_reasons`."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("id", pa.large_string(), nullable=False),
            pa.field("reason", pa.large_string(), nullable=False),
            pa.field("value", pa.float64()),
            pa.field("threshold", pa.float64()),
            pa.field("all_reasons", pa.large_string()),
            pa.field("source", pa.large_string()),
            pa.field("lang", pa.large_string()),
            pa.field("text", pa.large_string()),
        ]
    )
