"""Show one document of a filter output and why it stayed or went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmctl import console
from llmctl.artifacts.documents import DATA_FOLDER, REMOVED_FOLDER
from llmctl.artifacts.manifest import Manifest, read_manifest
from llmctl.errors import UserError
from llmctl.filtering.scores import ATTRIBUTES_FOLDER

SHOWN_CHARS = 2000


def explain(output: Path, identifier: str) -> None:
    """Print every document of that id: its fate, the reasons with value and limit, its statistics and its text.

    Raises:
        UserError: the folder is no output of filter, or no document has the id.
    """
    manifest = read_manifest(output, kinds=("documents",))
    if manifest.stage != "filter":
        raise UserError(f"{output} was written by `llmctl {manifest.stage}`", "give an output of `llmctl filter`")
    removed = [{"fate": "removed", **row} for row in _rows(manifest, REMOVED_FOLDER, identifier)]
    kept = [{"fate": "kept", **row} for row in _rows(manifest, DATA_FOLDER, identifier)]
    found = removed + kept
    if not found:
        raise UserError(
            f"{output} has no document `{identifier}`",
            "ids stand in data/ and removed/; records that could not be read are in invalid/",
        )
    statistics = _rows(manifest, ATTRIBUTES_FOLDER, identifier)
    for row in found:
        row["reasons"] = json.loads(row.pop("all_reasons", None) or "[]")
    if not console.is_json():
        for row in found:
            _print_fate(identifier, row)
        for values in statistics:
            names = [name for name in values if name not in ("id", "source", "lang")]
            console.table("statistics", ("name", "value"), [(name, values[name]) for name in names], to_stdout=True)
    text = "" if console.is_json() else "\n\n".join(_excerpt(row) for row in found)
    console.result(text, id=identifier, documents=found, statistics=statistics)


def _rows(manifest: Manifest, folder: str, identifier: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    for path in manifest.paths(f"{folder}/", ".parquet"):
        rows += pq.read_table(path, filters=[("id", "==", identifier)]).to_pylist()
    return rows


def _print_fate(identifier: str, row: dict[str, Any]) -> None:
    console.result(f"{identifier} ({row['source']}, {row['lang'] or 'language unknown'}): {row['fate']}")
    reasons = [(item["reason"], item["value"], item["threshold"]) for item in row["reasons"]]
    console.table("", ("rule", "value", "limit"), reasons or [("passes every rule", None, None)], to_stdout=True)


def _excerpt(row: dict[str, Any]) -> str:
    text = row.get("text")
    if text is None:
        return "(the text of removed documents was not kept; it is in the input)"
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text):,} characters)"
