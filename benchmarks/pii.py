"""Measure `llmctl filter --pii`: recall by type, false alarms per megabyte of clean prose, MB/s.

    python benchmarks/pii.py --carriers 40

Recall: values of every type are made with valid check digits and written into sentences of real text, each value about
`--carriers` times in different places; a value counts as found if it is found whole under its type. False alarms:
documentation, code, encyclopedia, medicine, Chinese law and poetry as they are; what is found there is counted by type
and shown, for a reader to judge (an address in documentation is no false alarm). The corpora are the shared ones where
they are (LLMCTL_SHARED_DATA, or ../shared/data beside the checkout).
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import io
import json
import os
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

from llmctl.filtering.pii.catalogue import entities, selected_types, type_names
from llmctl.filtering.pii.detect import detector

REPOSITORY = Path(__file__).resolve().parents[1]
CORPORA = {
    "documentation": "docs/en.jsonl.gz",
    "web pages": "web/pages-with-navigation.jsonl.gz",
    "encyclopedia": "wiki/articles.jsonl",
    "medicine": "medical/medquad.jsonl.zst",
    "Python": "code/python.jsonl.zst",
    "JavaScript": "code/javascript.jsonl.zst",
    "Chinese law": "zh/laws.jsonl.zst",
    "Chinese poetry": "zh/poetry.jsonl.zst",
    "Chinese manuals": "zh/manuals.jsonl.zst",
}


def corpus(name: str) -> list[bytes]:
    """Return the texts of a corpus, empty if it is not there."""
    import zstandard

    root = Path(os.environ.get("LLMCTL_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    path = root / "raw" / name
    if not path.is_file():
        return []
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
    return [json.loads(line)["text"].encode() for line in data.split(b"\n") if line]


def marked_values() -> dict[str, list[str]]:
    """Return sentences with each value between ⟦ and ⟧, by type: those of the tests."""
    path = REPOSITORY / "tests" / "unit" / "filtering" / "pii" / "test_types.py"
    spec = importlib.util.spec_from_file_location("pii_values", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.FOUND)


def recall(carriers: int, sentences: list[str]) -> dict[str, tuple[int, int]]:
    """Return how many values of each type were found, and how many there were, with all types looked for at once."""
    draw = random.Random(0)
    everything = detector(type_names())
    counts = {}
    for name, values in marked_values().items():
        found = total = 0
        for number in range(carriers):
            value = values[number % len(values)]
            text = f"{draw.choice(sentences)} {value} {draw.choice(sentences)}"
            plain = text.replace("⟦", "").replace("⟧", "").encode()
            wanted = re.findall("⟦(.*?)⟧", value, re.DOTALL)
            seen = Counter(
                plain[item.start : item.end].decode() for item in everything.find(plain) if item.name == name
            )
            found += sum(min(seen[item], 1) for item in wanted)
            total += len(wanted)
        counts[name] = (found, total)
    return counts


def main() -> None:
    """Run everything and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carriers", type=int, default=40, help="values of each type for the recall")
    parser.add_argument("--show", type=int, default=3, help="how many examples of what is found in clean text")
    arguments = parser.parse_args()
    texts = {name: corpus(path) for name, path in CORPORA.items()}
    texts = {name: found for name, found in texts.items() if found}
    prose = [text.decode() for name in ("documentation", "encyclopedia") for text in texts.get(name, [])]
    sentences = [part for text in prose[:400] for part in re.findall(r"[A-Z][^.\n]{40,200}\.", text)[:5]]
    sentences = sentences or ["The old town has a long history, and many of its houses were built with local stone."]

    counts = recall(arguments.carriers, sentences)
    missed = {name: pair for name, pair in counts.items() if pair[0] < pair[1]}
    found, total = (sum(pair[place] for pair in counts.values()) for place in (0, 1))
    print(f"recall: {found} of {total} values of {len(counts)} types found whole ({100 * found / total:.2f} %)")
    for name, (some, of) in missed.items():
        print(f"  {name:24s} {some} of {of}")
    confidence = {entity.name: entity.confidence for entity in reversed(entities())}
    for label in ("default", "all"):
        chosen = detector(selected_types([label]))
        print(f"\nfound in real text, types `{label}` (per MB; e.g.):")
        for name, documents in texts.items():
            size = sum(map(len, documents)) / 1e6
            for text in documents[:200]:
                chosen.find(text)  # the automata are built on the way
            started = time.process_time()
            results = [(text, chosen.find(text)) for text in documents]
            rate = size / (time.process_time() - started)
            kinds = Counter(item.name for _, items in results for item in items)
            print(f"  {name:16s} {size:5.1f} MB {rate:6.0f} MB/s  {sum(kinds.values()) / size:6.2f} per MB")
            for kind, count in kinds.most_common():
                shown = dict.fromkeys(
                    text[item.start : item.end].decode()
                    for text, items in results
                    for item in items
                    if item.name == kind
                )
                examples = "; ".join(list(shown)[: arguments.show])
                print(f"      {kind:22s} {confidence[kind]:7s} {count:5d}  {examples[:110]}")


if __name__ == "__main__":
    main()
