"""Make the tokenizer of a run: train or load it, and put domain terms into it."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmctl import console
from llmctl.artifacts.files import FileRecord, write_json
from llmctl.artifacts.inputs import Input
from llmctl.artifacts.output import Output
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.tokens import TOKENIZER_FOLDER, TokenizerFacts
from llmctl.errors import UserError
from llmctl.runtime.pool import Unit, run_units
from llmctl.tokenization import terms as domain
from llmctl.tokenization.config import TokenizeConfig
from llmctl.tokenization.existing import load_existing
from llmctl.tokenization.folder import TokenizerFolder
from llmctl.tokenization.sample import (
    NUM_BUCKETS,
    ScanContext,
    plan_sample,
    sample_several,
    sample_texts,
    scan_block,
)
from llmctl.tokenization.train import train

# Domain terms are judged on documents that neither they nor the vocabulary were learned from: 5 % of all.
HELD_OUT_BUCKETS = NUM_BUCKETS // 20
# Text of each kind that terms are looked for in, and measured on.
TERM_SAMPLE_BYTES = 20_000_000
HELD_OUT_BYTES = 5_000_000
GROWTH_FILE = f"{TOKENIZER_FOLDER}/grown_tokens.json"
_UNIT = "tokenizer"


@dataclass(frozen=True)
class BuiltTokenizer:
    """The tokenizer of a run as it lies in the output.

    Attributes:
        files: of the folder ``tokenizer/``.
        terms: what domain terms brought, for the manifest; None without them.
    """

    files: list[FileRecord]
    facts: TokenizerFacts
    terms: dict[str, Any] | None


def build_tokenizer(out: Output, inputs: Sequence[Input], config: TokenizeConfig) -> BuiltTokenizer:
    """Train or load the tokenizer and write its folder; one that an earlier run has written is taken as it is.

    Raises:
        UserError: the texts do not give the vocabulary asked for, or the existing tokenizer cannot be used.
    """
    saved = out.load_unit(_UNIT)
    if saved is not None:
        files = [FileRecord(item["path"], item["bytes"], item["sha256"]) for item in saved["files"]]
        return BuiltTokenizer(files, TokenizerFacts(**saved["facts"]), saved["terms"])
    texts = inputs[0]
    context = ScanContext(config.read, config.seed)
    scans = _scan(out, texts, context) if config.tokenizer is None or config.wants_terms else []
    if config.tokenizer is None:
        folder = _trained(texts, scans, context, config)
    else:
        folder = load_existing(next(item for item in inputs if item.role == "tokenizer"), config)
    report, extra = None, []
    if config.wants_terms:
        listed = next((item for item in inputs if item.role == "terms"), None)
        folder, report, growth = _with_terms(texts, scans, context, config, folder, listed)
        if growth["tokens"] and config.tokenizer is not None:
            extra.append(growth)
    facts = folder.facts()
    files = folder.write(out.root) + [write_json(out.root, GROWTH_FILE, growth) for growth in extra]
    out.save_unit(_UNIT, {"facts": facts.to_mapping(), "terms": report}, files)
    return BuiltTokenizer(files, facts, report)


def _scan(out: Output, texts: Input, context: ScanContext) -> list[Mapping[str, Any]]:
    scanned = run_units(
        scan_block,
        (Unit(block.name, block, block.input_bytes) for block in plan_blocks(texts, context.read)),
        context,
        out,
        phase="scan",
        label="reading",
        total_bytes=texts.total_bytes,
    )
    return [result.data for _, result in scanned]


def _trained(
    texts: Input, scans: Sequence[Mapping[str, Any]], context: ScanContext, config: TokenizeConfig
) -> TokenizerFolder:
    end = NUM_BUCKETS - HELD_OUT_BUCKETS if config.wants_terms else NUM_BUCKETS
    plan = plan_sample(scans, config.max_train_bytes, end=end)
    if plan.total_bytes == 0:
        raise UserError(f"{texts.root} holds no text to train a vocabulary on", "look at the input")
    if plan.sample_bytes < plan.total_bytes:
        console.info(f"training on {plan.sample_bytes / 1e6:,.1f} of {plan.total_bytes / 1e6:,.1f} MB of text")
    sample = sample_texts(plan_blocks(texts, context.read), plan, context, "training the tokenizer")
    return train(sample, config, config.vocab_size)


# -- domain terms ---------------------------------------------------------------------------------------------------


@dataclass
class _Samples:
    """Texts to look for terms in, and held-out texts to measure them on; of the domain and of the rest."""

    domain: list[str]
    elsewhere: list[str]
    domain_held_out: list[str]
    elsewhere_held_out: list[str]


def _samples(
    texts: Input, scans: Sequence[Mapping[str, Any]], context: ScanContext, config: TokenizeConfig
) -> _Samples:
    def inside(source: str) -> bool:
        return not config.domain_sources or any(fnmatch.fnmatchcase(source, item) for item in config.domain_sources)

    def outside(source: str) -> bool:
        return not inside(source)

    cut = NUM_BUCKETS - HELD_OUT_BUCKETS
    plans = [
        plan_sample(scans, TERM_SAMPLE_BYTES, end=cut, wanted=inside),
        plan_sample(scans, TERM_SAMPLE_BYTES, end=cut, wanted=outside),
        plan_sample(scans, HELD_OUT_BYTES, first=cut, wanted=inside),
        plan_sample(scans, HELD_OUT_BYTES, first=cut, wanted=outside),
    ]
    if plans[0].total_bytes == 0:
        sources = sorted({source for scan in scans for source in scan["sources"]})
        raise UserError(
            f"no text of the domain: no source matches {', '.join(config.domain_sources)}",
            f"sources of the input: {', '.join(sources[:8])}" + (", …" if len(sources) > 8 else ""),
        )
    found: list[list[str]] = [[], [], [], []]
    for number, text in sample_several(plan_blocks(texts, context.read), plans, context, "looking for domain terms"):
        found[number].append(text)
    return _Samples(*found)


def _with_terms(
    texts: Input,
    scans: Sequence[Mapping[str, Any]],
    context: ScanContext,
    config: TokenizeConfig,
    before: TokenizerFolder,
    listed: Input | None,
) -> tuple[TokenizerFolder, dict[str, Any], dict[str, Any]]:
    """Put the terms that pay into the vocabulary; return it with the report and the growth of an existing one."""
    _check_byte_level(before)
    samples = _samples(texts, scans, context, config)
    keep_size = config.tokenizer is None
    tokenizer = before.load()
    tokenizer.encode_special_tokens = True
    words = domain.count_words(tokenizer, samples.domain)
    candidates: list[domain.Term] = []
    if listed is not None:
        names = domain.read_terms(listed.root / listed.files[0].path)
        candidates += domain.listed(tokenizer, names, words, samples.domain)
    if config.mine_domain_terms:
        elsewhere = domain.count_words(tokenizer, samples.elsewhere)
        candidates += domain.mine(tokenizer, words, elsewhere, config.mine_domain_terms)
    # No more than half of the merges give way.
    displaced, domain_tokens = domain.last_uses(tokenizer, samples.domain, before.num_merges() // 2)
    chosen = domain.choose(
        candidates, domain_tokens, config.min_term_savings, displaced.tolist() if keep_size else None
    )
    chosen = domain.without_losses(before, chosen, keep_size=keep_size)
    after = domain.put_in(before, chosen, keep_size=keep_size)
    report = _report(before, after, chosen, len(candidates), samples)
    _tell(report)
    return after, report, domain.growth(tokenizer, after.load(), chosen)


def _check_byte_level(folder: TokenizerFolder) -> None:
    settings = json.loads(folder.tokenizer_json)
    text = json.dumps(settings.get("pre_tokenizer"))
    if settings["model"]["type"] != "BPE" or '"ByteLevel"' not in text:
        raise UserError(
            "domain terms need a byte-level BPE tokenizer, and this one is another kind",
            "leave the terms out, or train a tokenizer",
        )


def _report(
    before: TokenizerFolder, after: TokenizerFolder, chosen: Sequence[domain.Term], candidates: int, samples: _Samples
) -> dict[str, Any]:
    report: dict[str, Any] = {"candidates": candidates, "kept": len(chosen)}
    for name, texts in (("domain", samples.domain_held_out), ("elsewhere", samples.elsewhere_held_out)):
        if not texts:
            continue
        old, new = before.load(), after.load()
        old.encode_special_tokens = new.encode_special_tokens = True
        report[name] = {"before": domain.measure(old, texts), "after": domain.measure(new, texts)}
        measured = report[name]["before"]["utilization"], report[name]["after"]["utilization"]
        report[name]["utilization_gain"] = round(measured[1] / measured[0] - 1, 4) if measured[0] else None
    report["terms"] = [
        {"text": term.text, "count": term.count, "pieces": term.num_pieces, "saved": term.saved} for term in chosen
    ]
    return report


def _tell(report: dict[str, Any]) -> None:
    rows = []
    for name in ("domain", "elsewhere"):
        if name in report:
            for when in ("before", "after"):
                row = report[name][when]
                columns = ("vocabulary_used", "utilization", "bytes_per_token", "tokens_per_word")
                rows.append((f"{name}, {when}", row["tokens"], *(row[column] for column in columns)))
    console.table(
        f"{report['kept']:,} of {report['candidates']:,} domain terms pay; measured on held-out documents",
        ("text", "tokens", "tokens used", "utilization", "bytes/token", "tokens/word"),
        rows,
    )
    if not report["kept"]:
        console.warning(
            "no domain term saves enough tokens to become one",
            "a lower --min-term-savings keeps more; the vocabulary may have them already",
        )
