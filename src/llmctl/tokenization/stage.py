"""Turn texts into token ids: train or load a tokenizer, then encode every block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from llmctl import console
from llmctl.artifacts.accounting import merge_all
from llmctl.artifacts.documents import write_parquet
from llmctl.artifacts.files import FileRecord
from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.output import Output, open_output
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.tokens import KIND, TOKENIZER_FOLDER, TokenizerFacts
from llmctl.config.common import RunOptions
from llmctl.errors import RunFailed, UserError
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.tokenization.build import BuiltTokenizer, build_tokenizer
from llmctl.tokenization.config import TokenizeConfig
from llmctl.tokenization.encode import EncodeContext, encode_block, merged_accounting, tokenizer_threads, unpack_counts
from llmctl.tokenization.existing import tokenizer_input

VOCABULARY_FILE = "vocabulary.parquet"
# Text whose "words" are longer than this on average has no blanks between words (Chinese, Japanese, Thai).
_MAX_WORD_BYTES = 20


def run(source: Path, output: Path, config: TokenizeConfig, options: RunOptions) -> Manifest | None:
    """Tokenize documents into a `tokens` artifact.

    Args:
        source: a `documents` artifact, or raw files.
        output: the folder to write.
        config: what decides the ids.
        options: how to run.

    Returns:
        The manifest; None after a dry run.

    Raises:
        UserError: a wrong input, tokenizer or vocabulary size.
        RunFailed: a check of the ids failed.
    """
    texts = open_input(source, kinds=("documents",))
    inputs = [texts]
    if config.tokenizer is not None:
        inputs.append(tokenizer_input(config.tokenizer))
    if config.domain_terms is not None:
        inputs.append(open_input(config.domain_terms, role="terms"))
    with open_output(output, kind=KIND, stage="tokenize", config=config, inputs=inputs, options=options) as out:
        if out.finished is not None:
            return out.finished
        if options.dry_run:
            _tell_plan(texts, output, config, options)
            return None
        if options.verify:
            check_files(texts)
        with tokenizer_threads(options.num_workers):
            return _encode(out, texts, config, build_tokenizer(out, inputs, config))


def check_files(source: Input) -> None:
    """Read the files of an artifact again and compare their checksums.

    Raises:
        UserError: a file is damaged.
    """
    damaged = source.manifest.damaged_files() if source.manifest is not None else []
    if damaged:
        raise UserError(f"{source.root}: {damaged[0]}", "make the folder again")


def _tell_plan(texts: Input, output: Path, config: TokenizeConfig, options: RunOptions) -> None:
    if config.tokenizer is not None:
        vocabulary = f"the tokenizer of {config.tokenizer}"
    else:
        vocabulary = (
            f"a vocabulary of {config.vocab_size:,} tokens trained on up to {config.max_train_bytes / 1e6:,.0f} MB"
        )
    console.result(
        f"would read {len(texts.files):,} files ({texts.total_bytes / 1e6:,.1f} MB) of {texts.root} and write token "
        f"ids to {output}, with {vocabulary} and {options.num_workers} workers",
        files=len(texts.files),
        input_bytes=texts.total_bytes,
        output=str(output),
        tokenizer=config.tokenizer,
        vocab_size=config.vocab_size if config.tokenizer is None else None,
        workers=options.num_workers,
        dry_run=True,
    )


# -- encoding -------------------------------------------------------------------------------------------------------


def _encode(out: Output, texts: Input, config: TokenizeConfig, built: BuiltTokenizer) -> Manifest:
    facts = built.facts
    tokenizer_json = next(file for file in built.files if file.path == f"{TOKENIZER_FOLDER}/tokenizer.json")
    context = EncodeContext(
        root=str(out.root),
        tokenizer=str(out.root / tokenizer_json.path),
        facts=facts,
        read=config.read,
        allow_special=config.allow_special,
        # A tokenizer that we train is byte-level; how much others keep of a text is measured and told.
        lossless=config.tokenizer is None,
    )
    encoded = run_units(
        encode_block,
        (
            Unit(block.name, block, block.input_bytes, tokenizer_json.sha256)
            for block in plan_blocks(texts, config.read)
        ),
        context,
        out,
        phase="encode",
        label="encoding",
        total_bytes=texts.total_bytes,
    )
    results = [result for _, result in encoded]
    counts = sum((unpack_counts(result.data["vocabulary"]) for result in results), np.zeros(facts.vocab_size, np.int64))
    files = [*built.files, *(file for result in results for file in result.files)]
    files.append(_write_vocabulary(out.root, counts, context.tokenizer))
    statistics = _statistics(results, counts, facts, config)
    if built.terms is not None:
        statistics["domain_terms"] = built.terms
    _show(statistics)
    return out.finish(files, statistics)


def _write_vocabulary(root: Path, counts: np.ndarray, tokenizer_json: str) -> FileRecord:
    import pyarrow as pa
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_json)
    tokens = [tokenizer.id_to_token(number) for number in range(len(counts))]
    columns = {
        "id": pa.array(np.arange(len(counts)), pa.int32()),
        "token": pa.array(tokens, pa.large_string()),
        "count": pa.array(counts, pa.int64()),
    }
    return write_parquet(root, VOCABULARY_FILE, pa.table(columns))


def _statistics(
    results: list[UnitResult], counts: np.ndarray, facts: TokenizerFacts, config: TokenizeConfig
) -> dict[str, Any]:
    accounting = merge_all(merged_accounting(result.data) for result in results)
    accounting.check()
    accounting.warn()
    records = accounting.records()
    groups = accounting.groups.values()
    tokens, text_bytes, words = (sum(group[key] for group in groups) for key in ("tokens", "bytes_in", "words"))
    eos = int(counts[facts.eos_id])
    if int(counts.sum()) != tokens or eos < records["kept"] or (eos != records["kept"] and not config.allow_special):
        raise RunFailed(
            f"{tokens:,} tokens with {eos:,} {facts.eos_token} for {records['kept']:,} documents do not add up",
            "please report this fault",
        )
    special = [number for number in (facts.eos_id, facts.pad_id) if number is not None]
    used = int(np.count_nonzero(np.delete(counts, special)))
    checked, equal = (sum(result.data[key] for result in results) for key in ("checked", "equal"))
    if equal < checked:
        console.warning(
            f"{checked - equal:,} of {checked:,} documents that were decoded again differ from their text",
            "this tokenizer loses part of the text (case, blanks or rare characters)",
        )
    return {
        **accounting.to_mapping(),
        "documents": records["kept"],
        "tokens": tokens,
        "text_bytes": text_bytes,
        "bytes_per_token": round(text_bytes / tokens, 4) if tokens else None,
        "tokens_per_word": round((tokens - eos) / words, 4) if words else None,
        "vocabulary": {"size": facts.vocab_size, "used": used, "utilization": round(used / facts.vocab_size, 4)},
        "round_trip": {"checked": checked, "equal": equal},
        "normalization": config.normalization if config.tokenizer is None else "the tokenizer's own",
        "tokenizer": facts.to_mapping(),
    }


def _tokens_per_word(group: dict[str, Any]) -> float | None:
    """Return tokens for each word between blanks; None for text that is written without blanks."""
    if group["words"] * _MAX_WORD_BYTES <= group["bytes_in"]:
        return None
    return round((group["tokens"] - group["kept"]) / group["words"], 2)


def _show(statistics: dict[str, Any]) -> None:
    rows = [
        (
            group["source"],
            group["lang"],
            group["kept"],
            group["tokens"],
            round(group["bytes_in"] / group["tokens"], 2),
            _tokens_per_word(group),
        )
        for group in statistics["by_source"]
    ]
    shown = sorted(rows, key=lambda row: -row[3])[:20]
    title = "tokens by source and language" + (f" (the largest 20 of {len(rows)})" if len(rows) > 20 else "")
    console.table(title, ("source", "lang", "documents", "tokens", "bytes/token", "tokens/word"), shown)
    vocabulary = statistics["vocabulary"]
    console.info(
        f"{statistics['tokens']:,} tokens, {statistics['bytes_per_token'] or 0:.2f} bytes a token; "
        f"{vocabulary['used']:,} of {vocabulary['size']:,} tokens occur"
    )
