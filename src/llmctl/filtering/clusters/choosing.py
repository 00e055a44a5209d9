"""Choose the clusters to drop: by number, or all whose usable share is too low in an earlier run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmctl.artifacts.manifest import read_manifest
from llmctl.errors import UserError

if TYPE_CHECKING:
    from llmctl.filtering.config import FilterConfig

REPORT_NAME = "clusters.json"
_HINT = "run `llmctl filter SOURCE FIRST --clusters`, then again with --reuse-scores FIRST --min-cluster-usable SHARE"


def cluster_numbers(entries: Sequence[str | int]) -> list[int]:
    """Return the numbers in a list of clusters such as ``3,7``, ascending.

    Raises:
        UserError: something that is no number of a cluster.
    """
    parts = [part.strip() for entry in entries for part in str(entry).split(",") if part.strip()]
    wrong = [part for part in parts if not part.isdecimal() or int(part) < 1]
    if wrong:
        raise UserError(
            f"`{wrong[0]}` is no cluster", "clusters are numbered from 1; 0 is no cluster and stays: write 3,7"
        )
    return sorted({int(part) for part in parts})


def with_drop_list(config: FilterConfig, earlier: str | None) -> FilterConfig:
    """Return the configuration with the clusters that `min_cluster_usable` names, by number.

    Args:
        config: perhaps with `min_cluster_usable`.
        earlier: the output that `--reuse-scores` names.

    Raises:
        UserError: no earlier output, or one without clusters.
    """
    if config.min_cluster_usable is None:
        return config
    if earlier is None:
        raise UserError("`--min-cluster-usable` looks at the clusters of an earlier output", _HINT)
    manifest = read_manifest(Path(earlier), kinds=("documents",))
    paths = manifest.paths(REPORT_NAME)
    if not paths:
        raise UserError(f"{earlier} has no {REPORT_NAME}", _HINT)
    clusters = json.loads(paths[0].read_bytes())["clusters"]
    low = [entry["cluster"] for entry in clusters if entry["usable_share"] < config.min_cluster_usable]
    numbers = sorted({*cluster_numbers(config.drop_clusters), *low})
    return replace(config, drop_clusters=[str(number) for number in numbers], min_cluster_usable=None)
