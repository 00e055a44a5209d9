"""Run the passes over the whole corpus that a configuration asks for, and report what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from llmctl.artifacts.files import FileRecord
from llmctl.filtering.collection import Collected, Corpus
from llmctl.filtering.config import FilterConfig
from llmctl.filtering.policy import Policy
from llmctl.filtering.scores import StoredScores
from llmctl.filtering.templates import search as templates
from llmctl.runtime.pool import Unit, UnitResult

if TYPE_CHECKING:
    from llmctl.artifacts.output import Output


def run_passes(
    out: Output,
    units: Callable[[], Iterator[Unit]],
    total_bytes: int,
    config: FilterConfig,
    policies: Sequence[Policy],
    scores: StoredScores | None,
) -> tuple[Collected, ...]:
    """Run them, or take their columns from an earlier run over the same corpus.

    Args:
        out: the claimed output.
        units: gives the blocks as units of work, anew at each call.
        total_bytes: of the input.
        config, policies: what is asked for.
        scores: the earlier run.
    """
    wanted = {name for policy in policies for name in policy.rules}
    if config.templates == "off" and "template" not in wanted:
        return ()
    corpus = Corpus(out, units, config.read, total_bytes)
    return (templates.find_templates(corpus, config.template, scores),)


def report_passes(
    out: Output, collected: Sequence[Collected], results: Sequence[tuple[Unit, UnitResult]]
) -> tuple[dict[str, Any], list[FileRecord]]:
    """Write the findings of the passes and print them; return what the manifest tells, and the files."""
    statistics: dict[str, Any] = {}
    files = []
    for found in collected:
        files.append(out.write_json(found.report, found.findings))
        statistics[found.name] = templates.statistics(found)
        templates.report(found)
    return statistics, files
