"""Measure `llmctl dedup` from JSON lines to its output, and say which part sets the pace.

    python benchmarks/dedup.py --megabytes 200

The input is real text: the shared corpora where they are (LLMCTL_SHARED_DATA, or ../shared/data beside the checkout),
else the demo's corpus in data/sample. It is repeated up to the size asked for; in the repetitions every eighth word
is another one, so that they are no duplicates, and some documents are copied with small edits, so that some are.
The command runs with its defaults: all methods, 256 permutations, every candidate verified, the index kept.
If datatrove is installed, the first of its four MinHash steps (signatures) runs on a sample and the ratio is printed.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
COPIES = 0.05


def corpus_texts() -> list[str]:
    """Return the texts that the input is made of."""
    import gzip

    import orjson
    import zstandard

    named = os.environ.get("LLMCTL_SHARED_DATA")
    files = sorted((REPOSITORY / "data" / "sample").rglob("*.jsonl*"))
    for root in (Path(named) if named else None, REPOSITORY.parent / "shared" / "data"):
        if root is not None and (root / "raw").is_dir():
            files = sorted((root / "raw").rglob("*.jsonl*"))
            break
    if not files:
        sys.exit("no corpus: set LLMCTL_SHARED_DATA, or run in a checkout with data/sample")
    texts = []
    for file in files:
        data = file.read_bytes()
        if file.suffix == ".gz":
            data = gzip.decompress(data)
        elif file.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
        for line in data.split(b"\n"):
            try:
                text = orjson.loads(line)["text"]
            except (ValueError, KeyError, TypeError):
                continue
            if isinstance(text, str) and text:
                texts.append(text)
    return texts


def build_input(path: Path, megabytes: float) -> int:
    """Write the input and return the bytes of text in it."""
    import orjson

    texts, rng = corpus_texts(), random.Random(0)
    size, written, repetition = 0, 0, 0
    with open(path, "wb") as out:
        while written < megabytes * 1e6:
            for number, text in enumerate(texts):
                words = text.split(" ")
                if repetition:
                    for place in range(rng.randrange(8), len(words), 8):
                        words[place] += str(repetition)
                copies = [" ".join(words)]
                if rng.random() < COPIES:
                    words[len(words) // 2] += "x"
                    copies.append(" ".join(words))
                for copy, final in enumerate(copies):
                    line = orjson.dumps({"id": f"{repetition}-{number}-{copy}", "text": final, "source": "benchmark"})
                    written += out.write(line + b"\n")
                    size += len(final.encode())
                if written >= megabytes * 1e6:
                    break
            repetition += 1
    return size


def run_command(source: Path, output: Path, workers: int, cache: Path) -> tuple[float, float, int]:
    """Run the command once and return wall-clock seconds, processor seconds and the largest process in bytes."""
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "llmctl", "dedup", str(source), str(output), "--workers", str(workers), "-q"]
    # Blocks small enough that two workers have something to share.
    command += ["--set", "read.block_bytes=32MB"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, after.ru_maxrss * 1024


def parts(source: Path, output: Path) -> Iterator[tuple[str, float]]:
    """Run the stage in this process and yield the wall-clock seconds of each part (some run at the same time)."""
    from llmctl.artifacts import files
    from llmctl.artifacts.raw import read
    from llmctl.config.common import RunOptions
    from llmctl.dedup import searching, signatures, stage, writing
    from llmctl.dedup.config import DedupConfig

    seconds: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started

        return wrapper

    for module, name, label in (
        (read, "read_block", "read and parse"),
        (signatures, "shingle_sets", "shingles"),
        (signatures, "minhash_signatures", "MinHash"),
        (signatures, "hash_paragraphs", "paragraphs"),
        (signatures, "band_hashes", "bands"),
        (signatures, "stage_documents", "set documents aside *"),
        (files.HashingFile, "write", "hash and write index *"),
        (searching.Search, "run", "search and verify"),
        (stage, "choose_survivors", "choose survivors"),
        (writing, "write_parquet", "compress and write"),
    ):
        setattr(module, name, timed(label, getattr(module, name)))
    stage.warm_up = timed("start kernels", stage.warm_up)
    shutil.rmtree(output, ignore_errors=True)
    started = time.perf_counter()
    stage.run(source, output, DedupConfig(), RunOptions(workers=1))
    total = time.perf_counter() - started
    yield from sorted(seconds.items(), key=lambda item: -item[1])
    beside = sum(value for label, value in seconds.items() if label.endswith("*"))
    yield "everything else", total - sum(seconds.values()) + beside


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


def datatrove_rate(source: Path, folder: Path, megabytes: float) -> float | None:
    """Run datatrove's signature step on the first `megabytes` and return MB/s, or None if it is not installed."""
    try:
        from datatrove.executor import LocalPipelineExecutor
        from datatrove.pipeline.dedup import MinhashDedupSignature
        from datatrove.pipeline.readers import JsonlReader
    except ImportError:
        return None
    sample = source.read_bytes()[: int(megabytes * 1e6)]
    sample = sample[: sample.rfind(b"\n") + 1]
    (folder / "peer").mkdir()
    (folder / "peer" / "sample.jsonl").write_bytes(sample)
    steps = [JsonlReader(str(folder / "peer")), MinhashDedupSignature(output_folder=str(folder / "peer-out"))]
    started = time.perf_counter()
    LocalPipelineExecutor(pipeline=steps, tasks=1, workers=1, logging_dir=str(folder / "peer-log")).run()
    return len(sample) / 1e6 / (time.perf_counter() - started)


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
        one = folder / "one.jsonl"
        one.write_bytes(b'{"id": "a", "text": "b"}\n')
        print(f"input: {size:.0f} MB of JSON lines, {text_bytes / 1e6:.0f} MB of text")
        cold, _, _ = run_command(one, output, 1, cache)
        warm, _, _ = run_command(one, output, 1, cache)
        print(f"start-up (one record): cold {cold:.1f} s (kernels are compiled), warm {warm:.1f} s")
        rates = {}
        for workers in (1, 2):
            wall, cpu, memory = run_command(source, output, workers, cache)
            rates[workers] = size / (wall - warm)
            print(
                f"{workers} worker(s): {size / wall:6.1f} MB/s, {rates[workers]:6.1f} without start-up, "
                f"{size / cpu:6.1f} MB per processor second, {wall:.1f} s, largest process {memory / 1e6:,.0f} MB"
            )
        print(f"2 workers : 1 worker = {rates[2] / rates[1]:.2f} (without start-up)")
        print("time of each part, one worker (* at the same time as others):")
        measured = list(parts(source, folder / "parts"))
        total = sum(seconds for label, seconds in measured if not label.endswith("*"))
        for label, seconds in measured:
            rate = size / seconds if seconds > 0 else 0.0
            print(f"  {label:24s} {100 * seconds / total:5.1f} %   {rate:8.0f} MB/s")
        print("limits measured here:")
        for label, rate in limits(source).items():
            print(f"  {label:28s} {rate:7.0f} MB/s")
        peer = datatrove_rate(source, folder, arguments.peer_megabytes)
        if peer is None:
            print("datatrove is not installed: no ratio (pip install datatrove[processing])")
        else:
            print(f"datatrove, signatures alone: {peer:.2f} MB/s; llmctl, everything : that = {rates[1] / peer:.0f}")


if __name__ == "__main__":
    main()
