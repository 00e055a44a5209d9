"""What the benchmarks of data stages share: running commands, timing parts, the machine's limits, the peer."""

from __future__ import annotations

import argparse
import io
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
# Blocks small enough that two workers have something to share.
BLOCKS = ["--set", "read.block_bytes=32MB"]


def corpus_root() -> Path | None:
    """Return the folder of the shared corpora, if they are there."""
    named = os.environ.get("LLMCTL_SHARED_DATA")
    for root in (Path(named) if named else None, REPOSITORY.parent / "shared" / "data"):
        if root is not None and (root / "raw").is_dir():
            return root
    return None


def demo_files() -> list[Path]:
    """Return the JSON lines of the corpus that ships with the package."""
    files = sorted((REPOSITORY / "src" / "llmctl" / "demo" / "corpus").rglob("*.jsonl*"))
    if not files:
        sys.exit("no corpus: set LLMCTL_SHARED_DATA, or run in a checkout")
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


@dataclass(frozen=True)
class Cost:
    """What a command took: wall-clock and processor seconds, and its largest process in bytes."""

    wall: float
    processor: float
    memory: int


def run_timed(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> Cost:
    """Run a command to its end and return what it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(
        list(map(str, command)),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, processor, after.ru_maxrss * 1024)


def run_stage(stage: str, source: Path, output: Path, workers: int, cache: Path, more: Sequence[str]) -> Cost:
    """Run an llmctl stage as a user would, into an empty folder, with its kernels in `cache`."""
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "llmctl", stage, source, output, "--workers", str(workers), "-q", *BLOCKS, *more]
    return run_timed(command, {"XDG_CACHE_HOME": str(cache)})


class Stopwatch:
    """Adds up the time that functions take, by label.

    Args:
        clock: `time.perf_counter` or `time.process_time`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, name: str, label: str) -> None:
        """Put a timed function in the place of `owner.name`."""
        function = getattr(owner, name)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            started = self.clock()
            try:
                return function(*arguments, **keywords)
            finally:
                self.seconds[label] = self.seconds.get(label, 0.0) + self.clock() - started

        setattr(owner, name, timed)

    def parts(self, work: Callable[[], Any]) -> Iterator[tuple[str, float]]:
        """Do the work and yield each part's seconds, the longest first (marked ``*``: beside others), and the rest."""
        started = self.clock()
        work()
        total = self.clock() - started
        yield from sorted(self.seconds.items(), key=lambda item: -item[1])
        yield "everything else", total - sum(value for label, value in self.seconds.items() if not label.endswith("*"))


def print_parts(parts: Sequence[tuple[str, float]], megabytes: float) -> None:
    """Print each part's share and rate."""
    total = sum(seconds for label, seconds in parts if not label.endswith("*"))
    for label, seconds in parts:
        rate = megabytes / seconds if seconds > 0 else 0.0
        print(f"  {label:24s} {100 * seconds / total:5.1f} %   {rate:8.0f} MB/s")


def print_limits(source: Path) -> None:
    """Measure and print what this machine can do at most, in MB of text per second: parse, write."""
    import hashlib

    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    sample = head_of(source, 64)
    started = time.process_time()
    texts = [orjson.loads(line)["text"] for line in sample.split(b"\n") if line]
    parse = time.process_time() - started
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    started = time.process_time()
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=1, use_dictionary=False)
    hashlib.sha256(sink.getbuffer()).hexdigest()
    write = time.process_time() - started
    print("limits measured here:")
    for label, seconds in (("split and parse lines", parse), ("Parquet zstd-1 and SHA-256", write)):
        print(f"  {label:28s} {table.nbytes / 1e6 / seconds:7.0f} MB/s")


def head_of(source: Path, megabytes: float) -> bytes:
    """Return the first whole lines of a file."""
    with open(source, "rb") as lines:
        sample = lines.read(int(megabytes * 1e6))
    return sample[: sample.rfind(b"\n") + 1]


def measure_peer(python: str, script: str, source: Path, folder: Path, megabytes: float) -> tuple[float, float]:
    """Run a datatrove pipeline on a sample of `source` and return its MB per wall-clock and per processor second.

    What the first fiftieth of the sample takes is taken off: nearly all of it is start-up.

    Args:
        python: an interpreter that has datatrove.
        script: gets the folder of the input and that of the output as arguments.
    """
    costs, sizes = [], []
    for name, sample in (("begin", head_of(source, megabytes / 50)), ("peer", head_of(source, megabytes))):
        (folder / name).mkdir()
        (folder / name / "sample.jsonl").write_bytes(sample)
        costs.append(run_timed([python, "-c", script, folder / name, folder / f"{name}-out"]))
        sizes.append(len(sample) / 1e6)
    size = sizes[1] - sizes[0]
    return size / (costs[1].wall - costs[0].wall), size / (costs[1].processor - costs[0].processor)


def arguments_of(document: str | None, peer_megabytes: float) -> argparse.Namespace:
    """Return the arguments that every benchmark of a data stage takes."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=200, help="size of the input")
    parser.add_argument("--peer-python", help="an interpreter that has datatrove 0.10.1; without it, no ratio")
    parser.add_argument("--peer-megabytes", type=float, default=peer_megabytes, help="size of the sample for datatrove")
    return parser.parse_args()


def compare(stage: str, more: Sequence[str], script: str, build: Callable[[Path, float], int], options: Any) -> Path:
    """Build the input, run the stage with one worker and with two, and the peer, and print rates and ratios.

    Returns:
        The input, in a folder that is deleted at the end of the process.
    """
    import atexit

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, output, cache = folder / "input.jsonl", folder / "out", folder / "cache"
    text_bytes = build(source, options.megabytes)
    size = source.stat().st_size / 1e6
    one = folder / "one.jsonl"
    one.write_bytes(b'{"id": "a", "text": "b"}\n')
    print(f"input: {size:.0f} MB of JSON lines, {text_bytes / 1e6:.0f} MB of text; llmctl {stage} {' '.join(more)}")
    cold = run_stage(stage, one, output, 1, cache, more)
    warm = run_stage(stage, one, output, 1, cache, more)
    print(f"start-up (one record): cold {cold.wall:.1f} s (kernels are compiled), warm {warm.wall:.1f} s")
    rates: dict[int, list[float]] = {1: [], 2: []}
    processor: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(2):  # interleaved: other load on the machine meets both
        for workers in (1, 2):
            cost = run_stage(stage, source, output, workers, cache, more)
            rates[workers].append(size / (cost.wall - warm.wall))
            processor[workers].append(size / (cost.processor - warm.processor))
            print(
                f"{workers} worker(s): {size / cost.wall:6.1f} MB/s, {rates[workers][-1]:6.1f} without start-up, "
                f"{size / cost.processor:6.1f} MB per processor second, {cost.wall:.1f} s, "
                f"largest process {cost.memory / 1e6:,.0f} MB"
            )
    print(f"2 workers : 1 worker = {max(rates[2]) / max(rates[1]):.2f} (without start-up, the better of two runs each)")
    if options.peer_python:
        wall, busy = measure_peer(options.peer_python, script, source, folder, options.peer_megabytes)
        print(
            f"datatrove: {wall:.2f} MB/s, {busy:.2f} MB per processor second (without start-up); llmctl : datatrove = "
            f"{max(rates[1]) / wall:.0f} by the clock, {max(processor[1]) / busy:.0f} by processor time"
        )
    else:
        print(
            "no ratio: --peer-python names an interpreter with datatrove (pip install 'datatrove[processing]==0.10.1')"
        )
    return source
