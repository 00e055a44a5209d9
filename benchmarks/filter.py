"""Measure `llmctl filter` from JSON lines to its output, and say which part sets the pace.

    python benchmarks/filter.py --megabytes 200

The input is real text: the shared corpora where they are (LLMCTL_SHARED_DATA, or ../shared/data beside the checkout),
else the demo's corpus in data/sample, repeated up to the size asked for. The rules are Gopher's (quality and
repetition), C4's and FineWeb's. If datatrove is installed, the same rules run in it on a sample and the ratio is
printed; else the limits of this machine are what the parts are held against.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PRESETS = ("gopher", "c4", "fineweb")
REPOSITORY = Path(__file__).resolve().parents[1]


def corpus_files() -> list[Path]:
    """Return the JSON lines files that the input is made of."""
    named = os.environ.get("LLMCTL_SHARED_DATA")
    for root in (Path(named) if named else None, REPOSITORY.parent / "shared" / "data"):
        if root is not None and (root / "raw").is_dir():
            names = ("docs/en.jsonl.gz", "web/pages-with-navigation.jsonl.gz", "medical/medquad.jsonl.zst")
            return [root / "raw" / name for name in (*names, "wiki/articles.jsonl")]
    files = sorted((REPOSITORY / "data" / "sample").rglob("*.jsonl*"))
    if not files:
        sys.exit("no corpus: set LLMCTL_SHARED_DATA, or run in a checkout with data/sample")
    return files


def decompressed(path: Path) -> bytes:
    """Return the bytes of a file that may be compressed."""
    import gzip

    import zstandard

    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
    return data


def build_input(path: Path, megabytes: float) -> int:
    """Write the input and return the bytes of text in it."""
    import orjson

    parts = [decompressed(file).rstrip(b"\n") + b"\n" for file in corpus_files()]
    text = sum(len(orjson.loads(line)["text"].encode()) for part in parts for line in part.split(b"\n") if line)
    one_round = sum(map(len, parts))
    rounds = max(1, round(megabytes * 1e6 / one_round))
    with open(path, "wb") as out:
        for _ in range(rounds):
            for part in parts:
                out.write(part)
    return text * rounds


def run_command(source: Path, output: Path, workers: int, cache: Path) -> tuple[float, float]:
    """Run the command once and return its wall-clock and processor seconds."""
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "llmctl", "filter", str(source), str(output), "--workers", str(workers), "-q"]
    for preset in PRESETS:
        command += ["--preset", preset]
    # Blocks small enough that two workers have something to share.
    command += ["--set", "read.block_bytes=32MB"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def parts_of_a_block(source: Path, output: Path) -> Iterator[tuple[str, float]]:
    """Run the stage in this process and yield the processor seconds of each part."""
    from llmctl.config.common import RunOptions
    from llmctl.filtering import block, stage
    from llmctl.filtering.config import FilterConfig

    seconds: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            started = time.process_time()
            try:
                return function(*arguments, **keywords)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.process_time() - started

        return wrapper

    for name, label in (
        ("read_block", "read and parse"),
        ("document_statistics", "statistics"),
        ("edit_lines", "line rules"),
        ("write_parquet", "compress and write"),
    ):
        setattr(block, name, timed(label, getattr(block, name)))
    stage.warm_up = timed("start kernels", stage.warm_up)
    started = time.process_time()
    shutil.rmtree(output, ignore_errors=True)
    stage.run(source, output, FilterConfig(preset=list(PRESETS)), RunOptions(workers=1))
    total = time.process_time() - started
    yield from sorted(seconds.items(), key=lambda item: -item[1])
    yield "everything else", total - sum(seconds.values())


def limits(source: Path) -> dict[str, float]:
    """Measure what this machine can do at most, in MB of text per second: parse, write."""
    import hashlib

    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    sample = source.read_bytes()[: 64 << 20]
    sample = sample[: sample.rfind(b"\n") + 1]
    started = time.process_time()
    texts = [orjson.loads(line)["text"] for line in sample.split(b"\n") if line]
    parse = time.process_time() - started
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    started = time.process_time()
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=1, use_dictionary=False)
    hashlib.sha256(sink.getbuffer()).hexdigest()
    write = time.process_time() - started
    size = table.nbytes / 1e6
    return {"split and parse lines": size / parse, "Parquet zstd-1 and SHA-256": size / write}


def datatrove_rate(source: Path, megabytes: float) -> float | None:
    """Run the same rules in datatrove on the first `megabytes` and return MB/s, or None if it is not installed."""
    try:
        from datatrove.data import Document
        from datatrove.pipeline.filters import (
            C4QualityFilter,
            FineWebQualityFilter,
            GopherQualityFilter,
            GopherRepetitionFilter,
        )
    except ImportError:
        return None
    filters = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(), FineWebQualityFilter()]
    size = 0
    started = time.process_time()
    with open(source, "rb") as lines:
        for number, line in enumerate(lines):
            document = Document(text=json.loads(line)["text"], id=str(number))
            size += len(line)
            for rule in filters:
                if rule.filter(document) is not True:
                    break
            if size > megabytes * 1e6:
                break
    return size / 1e6 / (time.process_time() - started)


def main() -> None:
    """Run everything and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=200, help="size of the input")
    parser.add_argument("--peer-megabytes", type=float, default=3, help="size of the sample for datatrove")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, output, cache = folder / "input.jsonl", folder / "out", folder / "cache"
        text_bytes = build_input(source, arguments.megabytes)
        size = source.stat().st_size / 1e6
        print(f"input: {size:.0f} MB of JSON lines, {text_bytes / 1e6:.0f} MB of text; rules: {', '.join(PRESETS)}")
        rates = {}
        for label, workers in (("cold, 1 worker", 1), ("warm, 1 worker", 1), ("warm, 2 workers", 2)):
            wall, cpu = run_command(source, output, workers, cache)
            rates[label] = size / wall
            print(f"{label:18s} {size / wall:7.1f} MB/s   {size / cpu:7.1f} MB per processor second   {wall:.1f} s")
        print(f"2 workers : 1 worker = {rates['warm, 2 workers'] / rates['warm, 1 worker']:.2f}")
        print("processor time of one block's parts:")
        parts = list(parts_of_a_block(source, folder / "parts"))
        total = sum(seconds for _, seconds in parts)
        for label, seconds in parts:
            rate = size / seconds if seconds > 0 else 0.0
            print(f"  {label:20s} {100 * seconds / total:5.1f} %   {rate:8.0f} MB/s")
        print("limits measured here:")
        for label, rate in limits(source).items():
            print(f"  {label:28s} {rate:7.0f} MB/s")
        peer = datatrove_rate(source, arguments.peer_megabytes)
        if peer is None:
            print("datatrove is not installed: no ratio (pip install datatrove[processing])")
        else:
            print(f"datatrove: {peer:.2f} MB/s; llmctl : datatrove = {rates['warm, 1 worker'] / peer:.0f}")


if __name__ == "__main__":
    main()
