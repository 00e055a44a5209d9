"""`tokens` artifacts written directly, so that sharding is tested without tokenizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

EOS = 0

# A document: (id, source, lang, ids without EOS, bytes of its text).
Document = tuple[str, str, str | None, Sequence[int], int]


def write_tokens(
    root: Path, parts: Sequence[Sequence[Document]], dtype: str = "uint16", vocab_size: int = 60_000
) -> Path:
    """Write a `tokens` artifact whose blocks hold the given documents."""
    import pyarrow as pa

    from llmctl.artifacts.accounting import Accounting
    from llmctl.artifacts.documents import write_parquet
    from llmctl.artifacts.files import write_file
    from llmctl.artifacts.inputs import Input
    from llmctl.artifacts.output import open_output
    from llmctl.artifacts.tokens import TokenizerFacts, tokens_schema
    from llmctl.tokenization.config import TokenizeConfig

    source = Input("source", "raw", "raw", root.parent / "raw", [])
    with open_output(root, kind="tokens", stage="tokenize", config=TokenizeConfig(), inputs=[source]) as out:
        files = [write_file(root, "tokenizer/tokenizer.json", b"{}")]
        accounting = Accounting()
        total = 0
        for number, documents in enumerate(parts):
            lists = [[*ids, EOS] for _, _, _, ids, _ in documents]
            lengths = np.array([len(ids) for ids in lists], np.int64)
            flat = np.array([number for ids in lists for number in ids], dtype)
            table = pa.table(
                [
                    [document[0] for document in documents],
                    [document[1] for document in documents],
                    [document[2] for document in documents],
                    np.cumsum(lengths) - lengths,
                    lengths,
                    [document[4] for document in documents],
                ],
                schema=tokens_schema(),
            )
            files += [
                write_parquet(root, f"data/part-{number:05d}-00000.parquet", table),
                write_file(root, f"data/part-{number:05d}-00000.tokens", flat.tobytes()),
            ]
            accounting.add_file(f"{number}.jsonl", kept=len(documents))
            for (_, name, lang, _, size), length in zip(documents, lengths, strict=True):
                accounting.add_group(name, lang, **{"in": 1, "kept": 1, "tokens": int(length), "bytes_in": size})
            total += int(lengths.sum())
        facts = TokenizerFacts(vocab_size, EOS, "<|endoftext|>", None, None, dtype)
        statistics = {
            **accounting.to_mapping(),
            "documents": sum(map(len, parts)),
            "tokens": total,
            "tokenizer": facts.to_mapping(),
        }
        out.finish(files, statistics)
    return root


@pytest.fixture
def make_tokens(tmp_path) -> Callable[..., Path]:
    def make(parts: Sequence[Sequence[Document]], name: str = "tokens", **settings) -> Path:
        return write_tokens(tmp_path / name, parts, **settings)

    return make


@pytest.fixture
def documents() -> list[list[Document]]:
    """90 documents of three sources in three blocks."""
    return [
        [
            (
                f"d{part}-{n}",
                f"source {n % 3}/x",
                "en" if n % 2 else None,
                [1 + (part * 31 + n) % 500] * (n * 7 % 90),
                n * 11,
            )
            for n in range(30)
        ]
        for part in range(3)
    ]


@pytest.fixture(name="write_tokens", scope="session")
def write_tokens_fixture() -> Callable[..., Path]:
    return write_tokens
