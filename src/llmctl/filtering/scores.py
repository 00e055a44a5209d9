"""Take statistics from an earlier run's attributes/ instead of measuring the same text again.

A part is used only if it was made from the same bytes (its Parquet metadata carries their hash), so the output is the
same as without it; every other block is measured as usual.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import llmctl
from llmctl.artifacts.manifest import read_manifest
from llmctl.config.load import build, differences
from llmctl.config.schema import to_mapping
from llmctl.errors import UserError
from llmctl.filtering.config import FilterConfig
from llmctl.filtering.policy import Policy, policy_of, resolve_policies
from llmctl.filtering.rules import load_rule
from llmctl.text.statistics import STOP_WORD_COLUMNS, Family, columns_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

ATTRIBUTES_FOLDER = "attributes"
CONTENT_KEY = b"llmctl.content"


@dataclass(frozen=True)
class StoredScores:
    """The attributes of an earlier run.

    Attributes:
        root: its output folder.
        policies: the policies that it ran with; counts of listed words are used only where the lists are the same.
    """

    root: str
    policies: tuple[Policy, ...]


def open_scores(folder: str, config: FilterConfig) -> StoredScores:
    """Check that an earlier output can give its statistics.

    Raises:
        UserError: no output of filter, one without attributes/, or one that read its input in another way.
    """
    manifest = read_manifest(Path(folder), kinds=("documents",))
    if manifest.stage != "filter":
        raise UserError(f"{folder} was written by `llmctl {manifest.stage}`", "give an output of `llmctl filter`")
    if not manifest.paths(f"{ATTRIBUTES_FOLDER}/"):
        raise UserError(f"{folder} has no attributes/", "it was made with --no-attributes; run it again without")
    if manifest.tool_version != llmctl.__version__:
        raise UserError(
            f"{folder} was written by llmctl {manifest.tool_version}, this is {llmctl.__version__}",
            "leave --reuse-scores out: statistics may be counted differently",
        )
    changed = differences(to_mapping(config.read), manifest.config.get("read", {}), "read.")
    if changed:
        raise UserError(f"{folder} read its input with other settings ({'; '.join(changed)})", "use the same settings")
    return StoredScores(str(Path(folder).resolve()), tuple(resolve_policies(build(FilterConfig, manifest.config))))


def stored_columns(
    scores: StoredScores,
    part: str,
    content: str,
    families: Family,
    sources: Collection[str],
    policies: Sequence[Policy],
) -> dict[str, np.ndarray] | None:
    """Return the statistics of one part, or None if it is missing, made from other bytes, or lacks some of them.

    Args:
        part: its name, such as ``part-00000-00000``.
        content: the hash of the block's bytes.
        families: what is needed.
        sources: the sources in the block.
        policies: those of this run.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(scores.root) / ATTRIBUTES_FOLDER / f"{part}.parquet"
    needed = columns_of(families)
    try:
        schema = pq.read_schema(path)
        if (schema.metadata or {}).get(CONTENT_KEY) != content.encode() or not set(needed) <= set(schema.names):
            return None
        if set(needed) & set(STOP_WORD_COLUMNS) and not _same_lists(sources, scores.policies, policies):
            return None
        table = pq.read_table(path, columns=list(needed))
    except (OSError, pa.ArrowException):
        return None
    return {name: table.column(name).to_numpy() for name in needed}


def _same_lists(sources: Collection[str], theirs: Sequence[Policy], ours: Sequence[Policy]) -> bool:
    return all(_lists(theirs[policy_of(source, theirs)]) == _lists(ours[policy_of(source, ours)]) for source in sources)


def _lists(policy: Policy) -> dict[int, tuple[str, ...]]:
    return {
        load_rule(name).WORD_SLOT: tuple(parameters.words)
        for name, parameters in policy.document_rules.items()
        if hasattr(load_rule(name), "WORD_SLOT")
    }


def with_content(table: pa.Table, content: str) -> pa.Table:
    """Return the table with the hash of the bytes that it was made from."""
    return table.replace_schema_metadata({CONTENT_KEY: content.encode()})
