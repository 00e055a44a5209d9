"""Run the passes over the whole corpus that a configuration asks for, and report what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from llmctl.artifacts.files import FileRecord
from llmctl.errors import UserError
from llmctl.filtering.clusters import search as clusters
from llmctl.filtering.collection import Collected, Corpus
from llmctl.filtering.config import FilterConfig
from llmctl.filtering.models import Models
from llmctl.filtering.perplexity import ranks
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
    models: Models,
) -> tuple[Collected, ...]:
    """Run them, or take their columns from an earlier run over the same corpus.

    Args:
        out: the claimed output.
        units: gives the blocks as units of work, anew at each call.
        total_bytes: of the input.
        config, policies: what is asked for.
        scores: the earlier run.
        models: the models of the run.

    Raises:
        UserError: a cluster to be dropped that is not there.
    """
    rules = {name for policy in policies for name in policy.rules}
    with_templates = config.templates != "off" or "template" in rules
    with_clusters = config.clusters or clusters.RULE in rules
    ranked = models.perplexity if rules & {"perplexity_rank", "machine_text"} else None
    if not with_templates and not with_clusters and ranked is None:
        return ()
    corpus = Corpus(out, units, config.read, total_bytes)
    collected = []
    if ranked is not None:
        collected.append(ranks.rank_documents(corpus, ranked, scores))
    if with_templates:
        collected.append(templates.find_templates(corpus, config.template, scores))
    if with_clusters:
        collected.append(clusters.find_clusters(corpus, config.cluster, scores))
        known = len(collected[-1].findings["clusters"])
        beyond = [number for number in dropped_clusters(policies) if number > known]
        if beyond:
            raise UserError(
                f"there is no cluster {beyond[0]}: the corpus has {known}", "--clusters without a drop lists them"
            )
    return tuple(collected)


def dropped_clusters(policies: Sequence[Policy]) -> list[int]:
    """Return the clusters that any policy drops."""
    dropped = {int(n) for policy in policies if clusters.RULE in policy.rules for n in policy.rules[clusters.RULE].drop}
    return sorted(dropped)


def _masks(policies: Sequence[Policy]) -> bool:
    rules = [policy.rules["sensitive_entities"] for policy in policies if "sensitive_entities" in policy.rules]
    return any(getattr(rule, "mode", "") in ("mask", "drop") for rule in rules)


def _leave_texts_out(found: Collected) -> None:
    """Take pieces of texts out of the findings: they are not masked."""
    for family in found.findings.get("families", ()):
        family.pop("slots", None)
        family.pop("skeleton", None)
    for cluster in found.findings.get("clusters", ()):
        for example in cluster["typical"]:
            example.pop("text", None)


def report_passes(
    out: Output,
    policies: Sequence[Policy],
    collected: Sequence[Collected],
    results: Sequence[tuple[Unit, UnitResult]],
) -> tuple[dict[str, Any], list[FileRecord]]:
    """Write the findings of the passes and print them; return what the manifest tells, and the files."""
    statistics: dict[str, Any] = {}
    files = []
    for found in collected:
        kind: Any = ranks if found.name == ranks.NAME else templates
        if found.name == "clusters":
            kind = clusters
            clusters.add_usable(found, (result.data["clusters"] for _, result in results), dropped_clusters(policies))
        if _masks(policies):
            _leave_texts_out(found)
        files.append(out.write_json(found.report, found.findings))
        statistics[found.name] = kind.statistics(found)
        kind.report(found)
    return statistics, files
