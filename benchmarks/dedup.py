"""Measure `llmctl dedup` from JSON lines to its output, and say which part sets the pace.

    python benchmarks/dedup.py --megabytes 200 --peer-python peer/bin/python

The input is real text: the shared corpora where they are (LLMCTL_SHARED_DATA, or ../shared/data beside the checkout),
else the demo's corpus. It is repeated up to the size asked for; in the repetitions every eighth word is another one, so
that they are no duplicates, and some documents are copied with small edits, so that some are. The command runs with its
defaults: all methods, 256 permutations, every candidate verified, the index kept. datatrove runs its four MinHash steps
on a sample, with its own defaults (112 permutations, no candidate verified) and bands for the same threshold.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import measuring

COPIES = 0.05
PEER = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
source, output = sys.argv[1:]
config = MinhashConfig()
pipelines = [
    ([JsonlReader(source), MinhashDedupSignature(output + "/signatures", config=config)], 1),
    ([MinhashDedupBuckets(output + "/signatures", output + "/buckets", config=config)], config.num_buckets),
    ([MinhashDedupCluster(output + "/buckets", output + "/remove", config=config)], 1),
    ([JsonlReader(source), MinhashDedupFilter(output + "/remove"), JsonlWriter(output + "/kept")], 1),
]
for number, (steps, tasks) in enumerate(pipelines):
    LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=1, logging_dir=output + f"-log{number}").run()
"""


def corpus_texts() -> list[str]:
    """Return the texts that the input is made of."""
    import orjson

    root = measuring.corpus_root()
    files = sorted((root / "raw").rglob("*.jsonl*")) if root else measuring.demo_files()
    texts = []
    for file in files:
        for line in measuring.decompressed(file).split(b"\n"):
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


def parts(source: Path, output: Path) -> Iterator[tuple[str, float]]:
    """Run the stage in this process and yield the wall-clock seconds of each part (some run at the same time)."""
    from llmctl.artifacts import files
    from llmctl.artifacts.raw import read
    from llmctl.config.common import RunOptions
    from llmctl.dedup import searching, signatures, stage, writing
    from llmctl.dedup.config import DedupConfig

    watch = measuring.Stopwatch(time.perf_counter)
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
        watch.watch(module, name, label)
    watch.watch(stage, "warm_up", "start kernels")
    yield from watch.parts(lambda: stage.run(source, output, DedupConfig(), RunOptions(workers=1)))


def main() -> None:
    """Run everything and print the figures."""
    options = measuring.arguments_of(__doc__, peer_megabytes=3)
    source = measuring.compare("dedup", [], PEER, build_input, options)
    print("time of each part, one worker (* at the same time as others):")
    measuring.print_parts(list(parts(source, source.parent / "parts")), source.stat().st_size / 1e6)
    measuring.print_limits(source)


if __name__ == "__main__":
    main()
