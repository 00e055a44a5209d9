"""Compare `llmctl tokenize` with what the tokenizers library reaches by itself on the same cores and text.

    python benchmarks/tokenization.py CORPUS [--workers N] [--megabytes 40] [--rounds 3] [--datatrove PYTHON]

(Not `tokenize.py`: a script of that name hides the standard library's module.)

CORPUS is anything that `llmctl tokenize` reads. Several ways turn the same texts into the same ids, one after the other
in each round, so that a busy machine slows all of them:

* `encode_batch`: the library's own batch call with one thread a core; texts are in memory, nothing is written;
* `one by one`: a process pool that encodes document after document: the loop of Megatron-LM's
  `tools/preprocess_data.py`, written again here (the script itself needs a whole Megatron), without its reading and
  writing;
* `datatrove` (with `--datatrove PYTHON`, an interpreter that has it): JsonlReader and MegatronDocumentTokenizer on the
  file that llmctl reads, timed without its start;
* `llmctl`: the whole command: starting, reading, encoding, checks, writing.

Prints the rates in MB of text a second (medians), the ratio of llmctl to each, and llmctl's peak memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

BATCH = 1000
_tokenizer = None


def read_texts(corpus: Path, limit_bytes: int) -> list[str]:
    """Return texts of the corpus, up to a size."""
    from llmctl.artifacts.inputs import open_input
    from llmctl.artifacts.raw.blocks import ReadOptions
    from llmctl.artifacts.raw.plan import plan_blocks
    from llmctl.artifacts.raw.read import read_block

    texts: list[str] = []
    size = 0
    options = ReadOptions()
    for block in plan_blocks(open_input(corpus, kinds=("documents",)), options):
        for text in read_block(block, options).table.column("text").to_pylist():
            texts.append(text)
            size += len(text.encode())
            if size >= limit_bytes:
                return texts
    return texts


def with_encode_batch(texts: list[str], tokenizer_json: str, workers: int) -> tuple[float, int]:
    """Encode with the library's threads; return seconds and tokens."""
    code = (
        "import sys, json, time, numpy as np\n"
        "from tokenizers import Tokenizer\n"
        "texts = json.load(open(sys.argv[1])); tokenizer = Tokenizer.from_file(sys.argv[2])\n"
        "tokenizer.encode_special_tokens = True\n"
        "started, tokens = time.perf_counter(), 0\n"
        f"for first in range(0, len(texts), {BATCH}):\n"
        f"    for encoded in tokenizer.encode_batch(texts[first:first + {BATCH}], add_special_tokens=False):\n"
        "        tokens += len(np.array(encoded.ids, np.uint16))\n"
        "print(time.perf_counter() - started, tokens)\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(texts, file)
        file.flush()
        environment = {**os.environ, "RAYON_NUM_THREADS": str(workers), "TOKENIZERS_PARALLELISM": "true"}
        command = [sys.executable, "-c", code, file.name, tokenizer_json]
        seconds, tokens = subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment
        ).stdout.split()
    return float(seconds), int(tokens)


def _load(tokenizer_json: str) -> None:
    global _tokenizer
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer = Tokenizer.from_file(tokenizer_json)
    _tokenizer.encode_special_tokens = True


def _encode_one(text: str) -> int:
    assert _tokenizer is not None
    return len(np.array(_tokenizer.encode(text, add_special_tokens=False).ids, np.uint16))


def one_by_one(texts: list[str], tokenizer_json: str, workers: int) -> tuple[float, int]:
    """Encode document after document in a pool; return seconds (without the start of the pool) and tokens."""
    with multiprocessing.get_context("spawn").Pool(workers, _load, (tokenizer_json,)) as pool:
        pool.map(_encode_one, ["warm"] * workers)
        started = time.perf_counter()
        tokens = sum(pool.imap(_encode_one, texts, 25))
        return time.perf_counter() - started, tokens


def with_datatrove(python: str, corpus: Path, tokenizer_json: str, workers: int, scratch: Path) -> tuple[float, int]:
    """Run datatrove's reader and tokenizer in its own interpreter; return seconds and tokens without the last ones."""
    output = scratch / f"datatrove-{time.monotonic_ns()}"
    code = (
        "import os, sys, time\n"
        "from datatrove.pipeline.readers import JsonlReader\n"
        "from datatrove.pipeline.tokens import MegatronDocumentTokenizer\n"
        "corpus, output, tokenizer = sys.argv[1:]\n"
        "started = time.perf_counter()\n"
        "reader = JsonlReader(os.path.dirname(corpus), glob_pattern=os.path.basename(corpus))\n"
        "step = MegatronDocumentTokenizer(output, 'out', tokenizer, '<|endoftext|>', batch_size=1000)\n"
        "documents = 0\n"
        "def counted():\n"
        "    global documents\n"
        "    for document in reader.run():\n"
        "        documents += 1\n"
        "        yield document\n"
        "step.run(counted())\n"
        "seconds = time.perf_counter() - started\n"
        "size = sum(os.path.getsize(os.path.join(output, n)) for n in os.listdir(output) if n.endswith('.bin'))\n"
        "print(seconds, size // 2 - documents)\n"
    )
    environment = {**os.environ, "RAYON_NUM_THREADS": str(workers), "TOKENIZERS_PARALLELISM": "true"}
    command = [python, "-c", code, str(corpus), str(output), tokenizer_json]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    seconds, tokens = done.stdout.split()[-2:]
    return float(seconds), int(tokens)


def with_llmctl(corpus: Path, tokenizer_json: str, workers: int, scratch: Path, peaks: list[int]) -> tuple[float, int]:
    """Run the command, note its peak memory in kB; return seconds and tokens without the end-of-text ones."""
    output = scratch / f"out-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "llmctl", "tokenize", str(corpus), str(output), "--tokenizer", tokenizer_json]
    started = time.perf_counter()
    process = subprocess.Popen([*command, "--workers", str(workers), "-q"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        sys.exit(f"llmctl failed with status {os.waitstatus_to_exitcode(status)}")
    peaks.append(usage.ru_maxrss)
    found = json.loads((output / "manifest.json").read_text())["statistics"]
    return seconds, found["tokens"] - found["documents"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--datatrove", metavar="PYTHON", help="an interpreter that has datatrove")
    arguments = parser.parse_args()
    texts = read_texts(arguments.corpus, int(arguments.megabytes * 1e6))
    size = sum(len(text.encode()) for text in texts)
    seconds: dict[str, list[float]] = {"encode_batch": [], "one by one": [], "llmctl": []}
    peaks: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with open(scratch / "corpus.jsonl", "w") as out:
            out.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        train = [sys.executable, "-m", "llmctl", "tokenize", str(scratch / "corpus.jsonl"), str(scratch / "trained")]
        subprocess.run([*train, "--vocab-size", "16000", "--max-train-bytes", "10MB", "-q"], check=True)
        tokenizer_json = str(scratch / "trained" / "tokenizer" / "tokenizer.json")
        for _ in range(arguments.rounds):
            runs = {
                "encode_batch": with_encode_batch(texts, tokenizer_json, arguments.workers),
                "one by one": one_by_one(texts, tokenizer_json, arguments.workers),
                "llmctl": with_llmctl(scratch / "corpus.jsonl", tokenizer_json, arguments.workers, scratch, peaks),
            }
            if arguments.datatrove:
                runs["datatrove"] = with_datatrove(
                    arguments.datatrove, scratch / "corpus.jsonl", tokenizer_json, arguments.workers, scratch
                )
            counts = {name: tokens for name, (_, tokens) in runs.items()}
            if len(set(counts.values())) != 1:
                sys.exit(f"the ways disagree: {counts}")
            for name, (taken, _) in runs.items():
                seconds.setdefault(name, []).append(taken)
    print(f"{size / 1e6:.1f} MB in {len(texts):,} documents, {arguments.workers} workers, {arguments.rounds} rounds")
    ours = statistics.median(seconds["llmctl"])
    for name, times in seconds.items():
        middle = statistics.median(times)
        print(f"{name:13} {size / 1e6 / middle:6.2f} MB/s   llmctl is {middle / ours:.2f} × as fast")
    print(f"peak memory of llmctl's largest process: {max(peaks) / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
