"""Run `llmctl filter`: decide document by document by the rules of the source's policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmctl import console
from llmctl.artifacts.accounting import Accounting, merge_all
from llmctl.artifacts.documents import DATA_FOLDER, write_parquet
from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.kinds import documents_schema
from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.output import open_output
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.raw.read import content_key
from llmctl.config.common import RunOptions
from llmctl.filtering.block import BlockContext, filter_block
from llmctl.filtering.clusters.choosing import with_drop_list
from llmctl.filtering.config import DEFAULT_PRESET, FilterConfig, FilterOptions
from llmctl.filtering.models import Models, check_models, open_models
from llmctl.filtering.passes import report_passes, run_passes
from llmctl.filtering.pii.block import merged_statistics
from llmctl.filtering.policy import Policy, preset_rules, resolve_policies
from llmctl.filtering.report import report
from llmctl.filtering.scores import open_scores
from llmctl.runtime.pool import Unit, UnitResult, run_units

if TYPE_CHECKING:
    from llmctl.artifacts.output import Output
    from llmctl.filtering.collection import Collected


def run(
    source: Path,
    output: Path,
    config: FilterConfig,
    options: RunOptions,
    *,
    classifiers: Sequence[str] = (),
    perplexity_model: Path | None = None,
) -> Manifest:
    """Filter `source` into `output` and return its manifest (without files on a dry run).

    Args:
        source: raw files or documents.
        output: the folder to write.
        config: the policy.
        options: how to run.
        classifiers: ``NAME=FOLDER`` of trained classifiers.
        perplexity_model: an n-gram model.

    Raises:
        UserError: a path or a configuration that cannot be used.
    """
    opened = open_input(source, kinds=("documents",))
    reuse = options.reuse_scores if isinstance(options, FilterOptions) else None
    scores = open_scores(reuse, config) if reuse else None
    config = with_drop_list(config, reuse)
    models, inputs = open_models(classifiers, perplexity_model)
    policies = resolve_policies(config, models)
    check_models(models, policies, preset_rules(config.preset))
    inputs = [opened, *inputs]
    with open_output(output, kind="documents", stage="filter", config=config, inputs=inputs, options=options) as out:
        if out.finished is not None:
            return out.finished
        describe_policy(config, policies)
        if options.dry_run:
            return _dry_run(opened, config, policies)
        warm_up(models)
        collected = run_passes(out, lambda: units(opened, config), opened.total_bytes, config, policies, scores, models)
        results = run_units(
            filter_block,
            units(opened, config),
            BlockContext(config, str(out.root), scores, collected, models),
            out,
            phase="filter",
            label="filter",
            total_bytes=opened.total_bytes,
        )
        if reuse:
            used = sum(bool(result.data["reused_scores"]) for _, result in results)
            console.info(f"statistics of {used:,} of {len(results):,} blocks taken from {reuse}")
        return finish(out, policies, results, collected)


def units(source: Input, config: FilterConfig) -> Iterator[Unit]:
    """Yield the blocks of the input as units of work."""
    for block in plan_blocks(source, config.read):
        yield Unit(block.name, block, block.input_bytes, content_key(block))


def warm_up(models: Models) -> None:
    """Compile the kernels (or load them) before workers start, so that each finds them in the cache."""
    import numpy as np

    from llmctl.text.grams import score_documents
    from llmctl.text.lines import edit_lines
    from llmctl.text.samples import cut_samples
    from llmctl.text.statistics import Family, document_statistics
    from llmctl.text.surprise import build_table, surprise

    data, offsets = np.frombuffer(b"A word.", np.uint8), np.array([0, 7])
    document_statistics(data, offsets, Family.LINES)
    edit_lines(data, offsets, [{"line_end_mark": 1.0}], np.zeros(1, np.int32))
    cut_samples(data, offsets, 8)
    if models.perplexity is not None:
        zeros = np.zeros(1, np.float32)
        surprise(data, offsets, build_table(np.ones(1, np.uint64), zeros, zeros, 2, -1.0))
    if models.classifiers:
        score_documents(data, offsets, np.zeros(2, np.float32))


def describe_policy(config: FilterConfig, policies: Sequence[Policy]) -> None:
    """Say which rules apply."""
    names = ", ".join(config.preset) or "none"
    default = " (the default; --preset chooses another)" if config.preset == [DEFAULT_PRESET] else ""
    console.info(f"policy: preset {names}{default}, {len(policies[0].rules)} rules")
    for policy in policies[1:]:
        console.info(f"policy of {policy.pattern}: {len(policy.rules)} rules")


def _dry_run(source: Input, config: FilterConfig, policies: Sequence[Policy]) -> Manifest:
    blocks = [(block.name, block.input_bytes, len(block.segments)) for block in plan_blocks(source, config.read)]
    plan = {
        "files": len(source.files),
        "input_bytes": source.total_bytes,
        "blocks": len(blocks),
        "policy": {policy.pattern: policy.to_mapping() for policy in policies},
    }
    return Manifest(kind="documents", stage="filter", config={}, statistics={"plan": plan})


def finish(
    out: Output,
    policies: Sequence[Policy],
    results: Sequence[tuple[Unit, UnitResult]],
    collected: Sequence[Collected] = (),
) -> Manifest:
    """Merge the blocks' counts, check them, write the manifest and say what happened."""
    files = [record for _, result in results for record in result.files]
    if not results:
        files.append(
            write_parquet(out.root, f"{DATA_FOLDER}/part-00000-00000.parquet", documents_schema().empty_table())
        )
    accounting = merge_all(Accounting.from_mapping(result.data["accounting"]) for _, result in results)
    accounting.check()
    lines: Counter[str] = Counter()
    fails: Counter[str] = Counter()
    languages: Counter[str] = Counter({"declared": 0, "detected": 0, "unknown": 0})
    policy_numbers: dict[str, int] = {}
    for _, result in results:
        lines.update(result.data["lines"])
        fails.update(result.data["fails"])
        languages.update(result.data["languages"])
        policy_numbers.update(result.data["policies"])
    statistics = {
        **accounting.to_mapping(),
        # A document may fail several rules: `by_reason` has the deciding one, this all of them.
        "failed_by_rule": {name: count for name, count in sorted(fails.items()) if count},
        # `by_source` has the same by group: `lang_detected` of its documents have their language from the detector.
        "languages": dict(languages),
        "lines": dict(sorted(lines.items())),
        "policy": {policy.pattern: policy.to_mapping() for policy in policies},
        "policy_by_source": {name: policies[number].pattern for name, number in sorted(policy_numbers.items())},
    }
    sensitive = [result.data["sensitive"] for _, result in results if result.data["sensitive"]]
    if sensitive:
        statistics["sensitive"] = merged_statistics(sensitive)
    passes, tables = report_passes(out, policies, collected, results)
    manifest = out.finish([*files, *tables], {**statistics, **passes})
    report(statistics)
    accounting.warn()
    return manifest
