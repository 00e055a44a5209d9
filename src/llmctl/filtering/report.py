"""Say on stderr what a filter run removed and kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmctl import console

MAX_ROWS = 20


def report(statistics: Mapping[str, Any]) -> None:
    """Print what was removed and why, and what was kept by source."""
    _report_reasons(statistics)
    _report_sources(statistics["by_source"])
    _report_sensitive(statistics.get("sensitive"))
    languages = statistics["languages"]
    if languages["detected"] or languages["unknown"]:
        console.info(
            f"language: {languages['declared']:,} records name theirs, {languages['detected']:,} were identified, "
            f"{languages['unknown']:,} stay unknown (too short, or not sure)"
        )
    changed = statistics["lines"].get("changed_documents", 0)
    if changed:
        console.info(f"the line rules changed {changed:,} of the kept documents")


def _report_reasons(statistics: Mapping[str, Any]) -> None:
    total = statistics["records"]["in"]
    fails = statistics["failed_by_rule"]
    reasons = sorted(statistics["by_reason"].items(), key=lambda item: (-item[1], item[0]))
    if reasons:
        rows = [(name, count, share(count, total), fails.get(name, 0)) for name, count in reasons]
        console.table("removed", ("reason", "documents", "share", "failed in all"), rows)


def _report_sensitive(sensitive: Mapping[str, Any] | None) -> None:
    if sensitive is None:
        return
    documents = sensitive["documents"]
    console.info(
        f"sensitive entities in {documents['with_entities']:,} of {documents['searched']:,} documents"
        + (f", masked in {documents['masked']:,}" if documents.get("masked") else "")
    )
    counts = sorted(sensitive["by_type"].items(), key=lambda item: (-item[1], item[0]))
    if counts:
        console.table("sensitive entities", ("type", "found"), counts[:MAX_ROWS])


def _report_sources(groups: list[dict[str, Any]]) -> None:
    if not groups:
        return
    largest = sorted(groups, key=lambda group: (-group["in"], group["source"], group["lang"]))[:MAX_ROWS]
    rows = [
        (
            group["source"],
            group["lang"],
            group["in"],
            group["kept"],
            share(group["kept"], group["in"]),
            share(group["bytes_kept"], group["bytes_in"]),
        )
        for group in largest
    ]
    title = "kept" if len(groups) <= MAX_ROWS else f"kept (the largest {MAX_ROWS} of {len(groups)} groups)"
    console.table(title, ("source", "language", "in", "kept", "documents", "bytes"), rows)


def share(part: int, whole: int) -> str:
    """Return a share as text, such as ``12.3%``."""
    return f"{100 * part / whole:.1f}%" if whole else "–"
