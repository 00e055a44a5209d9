"""Measure `llmctl filter` from JSON lines to its output, and say which part sets the pace.

    python benchmarks/filter.py --megabytes 200 --peer-python peer/bin/python

The input is real text: the shared corpora where they are (LLMCTL_SHARED_DATA, or ../shared/data beside the checkout),
else the demo's corpus, repeated up to the size asked for. The rules are Gopher's (quality and repetition), C4's and
FineWeb's; languages are not identified, since the peer does not either. The same rules run in datatrove, from a folder
of JSON lines to a folder of JSON lines, one worker, on a sample.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import measuring

PRESETS = ("gopher", "c4", "fineweb")
PEER = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
source, output = sys.argv[1:]
rules = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(), FineWebQualityFilter()]
steps = [JsonlReader(source), *rules, JsonlWriter(output)]
LocalPipelineExecutor(pipeline=steps, tasks=1, workers=1, logging_dir=output + "-log").run()
"""


def build_input(path: Path, megabytes: float) -> int:
    """Write the input and return the bytes of text in it."""
    import orjson

    root = measuring.corpus_root()
    names = (
        "docs/en.jsonl.gz",
        "web/pages-with-navigation.jsonl.gz",
        "medical/medquad.jsonl.zst",
        "wiki/articles.jsonl",
    )
    files = [root / "raw" / name for name in names] if root else measuring.demo_files()
    parts = [measuring.decompressed(file).rstrip(b"\n") + b"\n" for file in files]
    text = sum(len(orjson.loads(line)["text"].encode()) for part in parts for line in part.split(b"\n") if line)
    rounds = max(1, round(megabytes * 1e6 / sum(map(len, parts))))
    with open(path, "wb") as out:
        for _ in range(rounds):
            for part in parts:
                out.write(part)
    return text * rounds


def parts(source: Path, output: Path) -> Iterator[tuple[str, float]]:
    """Run the stage in this process and yield the processor seconds of each part."""
    from llmctl.config.common import RunOptions
    from llmctl.filtering import block, stage
    from llmctl.filtering.config import FilterConfig

    watch = measuring.Stopwatch(time.process_time)
    for name, label in (
        ("read_block", "read and parse"),
        ("document_statistics", "statistics"),
        ("edit_lines", "line rules"),
        ("write_parquet", "compress and write"),
    ):
        watch.watch(block, name, label)
    watch.watch(stage, "warm_up", "start kernels")
    config = FilterConfig(preset=list(PRESETS), detect_language="off")
    yield from watch.parts(lambda: stage.run(source, output, config, RunOptions(workers=1)))


def main() -> None:
    """Run everything and print the figures."""
    options = measuring.arguments_of(__doc__, peer_megabytes=3)
    more = [word for preset in PRESETS for word in ("--preset", preset)] + ["--detect-language", "off"]
    source = measuring.compare("filter", more, PEER, build_input, options)
    print("processor time of each part, one worker:")
    measuring.print_parts(list(parts(source, source.parent / "parts")), source.stat().st_size / 1e6)
    measuring.print_limits(source)


if __name__ == "__main__":
    main()
