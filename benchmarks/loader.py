"""Tokens a second of collated batches, against litdata and mosaicml-streaming delivering the same batches.

    python -m venv peers && peers/bin/pip install litdata mosaicml-streaming
    python benchmarks/loader.py --peers peers/bin/python [--documents 30000] [--seq-len 2048] [--workers 0]

Documents of log-normal length are packed by best fit. llmctl packs, checks CRCs and collates from its TFRecord shards.
The peers get an easier task: the sequences are packed for them beforehand and stored in the order in which they are
read, each with the lengths of its pieces; they read, build inputs, labels, positions and document numbers with NumPy,
and collate int64 batches. Digests of all rows check that all deliver the same sequences. Each contestant runs in its
own process, in turn, for several rounds; medians. With 0 workers batches are made when they are asked for, by all; the
one worker of llmctl is a thread that is a batch ahead. Its rate is that of the first epoch, in which checksums are
computed; `again` is that of a later one. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

EOS = 0


def arrays_of(tokens: np.ndarray, sizes: np.ndarray, before: np.ndarray, seq_len: int) -> dict[str, np.ndarray]:
    """Return what a model takes of one packed sequence, as the peers' user would build it."""
    labels = np.full(seq_len, -100, dtype=np.int64)
    labels[: len(tokens)] = tokens
    inputs = np.full(seq_len, EOS, dtype=np.int64)
    inputs[1 : len(tokens)] = tokens[:-1]
    starts = np.cumsum(sizes) - sizes
    inputs[starts] = before
    documents = np.full(seq_len, len(sizes), dtype=np.int64)
    documents[: len(tokens)] = np.repeat(np.arange(len(sizes)), sizes)
    positions = np.arange(seq_len)
    positions[: len(tokens)] -= np.repeat(starts, sizes)
    positions[len(tokens) :] -= len(tokens)
    return {"input_ids": inputs, "labels": labels, "position_ids": positions, "document_ids": documents}


NAMES = ("input_ids", "labels", "position_ids", "document_ids")


def timed(batches: Iterable[Any], digest: bool) -> dict[str, Any]:
    """Consume batches; return seconds from the first request, and a digest if asked for."""
    rows: list[str] = []
    count = 0
    started = time.perf_counter()
    for batch in batches:
        count += 1
        if digest:
            arrays = [np.asarray(batch[name]) for name in NAMES]
            for row in range(len(arrays[0])):
                rows.append(hashlib.sha256(b"".join(array[row].tobytes() for array in arrays)).hexdigest())
    seconds = time.perf_counter() - started
    ordered, rows_digest = (hashlib.sha256("".join(part).encode()).hexdigest() for part in (rows, sorted(rows)))
    return {"seconds": seconds, "batches": count, "ordered": ordered, "rows": rows_digest}


# -- contestants; each runs in its own process ------------------------------------------------------------------------


def run_llmctl(folder: Path, settings: dict[str, Any], digest: bool) -> dict[str, Any]:
    """Deliver two epochs from shards; with a worker, a batch is made ahead in a thread, as `llmctl pretrain` does."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from llmctl.artifacts.shards import open_shards
    from llmctl.loading.loader import Loader, LoaderSettings
    from llmctl.pretraining.data import to_batch

    torch.set_num_threads(1)
    documents = open_shards(folder / "shards")
    steps = settings["batches"]
    loader_settings = LoaderSettings(steps, settings["batch"], settings["seq_len"], packing="best_fit")
    members = np.arange(len(documents))
    open_started = time.perf_counter()
    loader = Loader(documents, members, loader_settings)
    prepared = time.perf_counter() - open_started
    # Compile outside of the clock, on documents that are not marked as verified.
    Loader(open_shards(folder / "shards"), members, loader_settings).batch(1)

    def epoch() -> Iterator[Any]:
        if not settings["workers"]:
            for step in range(1, steps + 1):
                yield to_batch(loader.batch(step))
            return
        with ThreadPoolExecutor(1) as pool:
            upcoming = pool.submit(loader.batch, 1)
            for step in range(1, steps + 1):
                batch = to_batch(upcoming.result())
                if step < steps:
                    upcoming = pool.submit(loader.batch, step + 1)
                yield batch

    first = timed(epoch(), digest)
    again = timed(epoch(), False)
    return {**first, "again": again["seconds"], "prepare": prepared}


def run_litdata(folder: Path, settings: dict[str, Any], digest: bool) -> dict[str, Any]:
    """Deliver one epoch by litdata's StreamingDataset and StreamingDataLoader."""
    import torch
    from litdata import StreamingDataLoader, StreamingDataset

    torch.set_num_threads(1)
    seq_len = settings["seq_len"]

    class Rows(StreamingDataset):
        def __getitem__(self, index: Any) -> dict[str, Any]:
            row = super().__getitem__(index)
            made = arrays_of(row["tokens"].numpy(), row["sizes"].numpy(), row["before"].numpy(), seq_len)
            return {name: torch.from_numpy(array) for name, array in made.items()}

    dataset = Rows(str(folder / "litdata"), shuffle=False)
    loader = StreamingDataLoader(dataset, batch_size=settings["batch"], num_workers=settings["workers"], drop_last=True)
    return timed(loader, digest)


def run_streaming(folder: Path, settings: dict[str, Any], digest: bool) -> dict[str, Any]:
    """Deliver one epoch by mosaicml-streaming's StreamingDataset and a DataLoader."""
    import torch
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    seq_len = settings["seq_len"]

    class Rows(StreamingDataset):
        def __getitem__(self, index: Any) -> dict[str, Any]:
            row = super().__getitem__(index)
            made = arrays_of(row["tokens"], row["sizes"], row["before"], seq_len)
            return {name: torch.from_numpy(array) for name, array in made.items()}

    dataset = Rows(local=str(folder / "mds"), shuffle=False, batch_size=settings["batch"], num_canonical_nodes=1)
    loader: Any = DataLoader(dataset, batch_size=settings["batch"], num_workers=settings["workers"], drop_last=True)
    return timed(loader, digest)


# -- data -------------------------------------------------------------------------------------------------------------


def make_shards(folder: Path, count: int) -> None:
    """Write a shards artifact of random documents through the commands, from text of known length."""
    from llmctl.cli.app import run

    generator = np.random.default_rng(0)
    words = np.array(["".join(map(chr, generator.integers(97, 123, 4))) for _ in range(5000)])
    with open(folder / "raw.jsonl", "w", encoding="utf-8") as file:
        for length in np.maximum(1, generator.lognormal(6, 1, count)).astype(int):
            file.write(json.dumps({"text": " ".join(generator.choice(words, length))}) + "\n")
    for command in (
        ["tokenize", str(folder / "raw.jsonl"), str(folder / "tok"), "--vocab-size", "8000", "--quiet"],
        ["shard", str(folder / "tok"), str(folder / "shards"), "--quiet"],
    ):
        if run(command):
            raise SystemExit("the corpus could not be made")


def write_rows(folder: Path, settings: dict[str, Any]) -> None:
    """Write the packed sequences of one epoch, in order, for the peers to store."""
    from llmctl.artifacts.shards import open_shards
    from llmctl.loading.batches import join
    from llmctl.loading.loader import Loader, LoaderSettings

    documents = open_shards(folder / "shards", verify=False)
    members = np.arange(len(documents))
    loader = Loader(documents, members, LoaderSettings(1, 1, settings["seq_len"], packing="best_fit"))
    settings["batches"] = min(settings["batches"], loader.per_epoch // settings["batch"])
    ((places, pieces),) = loader.streams[0].pieces(np.arange(settings["batches"] * settings["batch"]))
    pieces = join([pieces]).take(np.argsort(places))
    settings["tokens"] = int(pieces.sizes.sum())
    tokens = [
        documents.tokens(int(document), int(start), int(start + size))
        for document, start, size in zip(pieces.documents, pieces.starts, pieces.sizes, strict=True)
    ]
    before = [
        documents.tokens(int(document), int(start) - 1, int(start))[0] if start else EOS
        for document, start in zip(pieces.documents, pieces.starts, strict=True)
    ]
    np.savez(
        folder / "rows.npz",
        tokens=np.concatenate(tokens),
        before=np.array(before, dtype=np.int64),
        sizes=pieces.sizes,
        firsts=pieces.firsts,
    )


def store_for_peers(folder: Path) -> None:
    """Write the rows as MDS and litdata data sets (runs with the peers' interpreter)."""
    from litdata.streaming.cache import Cache
    from streaming import MDSWriter

    rows = np.load(folder / "rows.npz")
    sizes, firsts, tokens, before = rows["sizes"], rows["firsts"], rows["tokens"], rows["before"]
    ends = np.concatenate(([0], np.cumsum(sizes)))

    def each() -> Iterator[dict[str, np.ndarray]]:
        for first, last in pairwise(firsts):
            yield {
                "tokens": np.ascontiguousarray(tokens[ends[first] : ends[last]]),
                "sizes": sizes[first:last],
                "before": before[first:last],
            }

    columns = {"tokens": "ndarray:uint16", "sizes": "ndarray:int64", "before": "ndarray:int64"}
    with MDSWriter(out=str(folder / "mds"), columns=columns, size_limit="64mb") as writer:
        for row in each():
            writer.write(row)
    import torch

    (folder / "litdata").mkdir()
    cache = Cache(str(folder / "litdata"), chunk_bytes="64MB")
    for index, row in enumerate(each()):
        cache[index] = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in row.items()}
    cache.done()
    cache.merge()


# -- the run ----------------------------------------------------------------------------------------------------------

CONTESTANTS = {"llmctl": run_llmctl, "litdata": run_litdata, "streaming": run_streaming}


def call(python: str, what: str, folder: Path, settings: dict[str, Any], digest: bool) -> dict[str, Any]:
    """Run one contestant in its own process."""
    command = [python, __file__, "--worker", what, "--folder", str(folder), "--settings", json.dumps(settings)]
    done = subprocess.run(
        [*command, *(["--digest"] if digest else [])],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(f"{what} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Make the data, let the contestants take turns, print medians and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peers", help="interpreter of an environment with litdata and mosaicml-streaming")
    parser.add_argument("--documents", type=int, default=30_000)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2], help="DataLoader workers of the peers")
    parser.add_argument("--folder", type=Path, help="keep the data here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--settings", help=argparse.SUPPRESS)
    parser.add_argument("--digest", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker == "store":
        store_for_peers(arguments.folder)
        print("{}")
        return
    if arguments.worker:
        settings = json.loads(arguments.settings)
        print(json.dumps(CONTESTANTS[arguments.worker](arguments.folder, settings, arguments.digest)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        compare(arguments, arguments.folder or Path(scratch))


def compare(arguments: argparse.Namespace, folder: Path) -> None:
    """Run everything in one folder."""
    settings = {"seq_len": arguments.seq_len, "batch": arguments.batch, "batches": arguments.batches, "workers": 0}
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "shards").is_dir():
        make_shards(folder, arguments.documents)
    write_rows(folder, settings)
    contestants = [("llmctl", sys.executable, 0), ("llmctl", sys.executable, 1)]
    if arguments.peers:
        for name in ("litdata", "mds"):
            shutil.rmtree(folder / name, ignore_errors=True)
        call(arguments.peers, "store", folder, settings, False)
        contestants += [
            (name, arguments.peers, count) for name in ("litdata", "streaming") for count in arguments.workers
        ]
    digests = {}
    for name, python, workers in contestants:
        digests[f"{name}, {workers} workers"] = call(python, name, folder, {**settings, "workers": workers}, True)
    results: dict[str, list[dict[str, Any]]] = {}
    for _ in range(arguments.rounds):
        for name, python, workers in contestants:
            results.setdefault(f"{name}, {workers} workers", []).append(
                call(python, name, folder, {**settings, "workers": workers}, False)
            )
    rates = {
        name: settings["tokens"] / statistics.median(run["seconds"] for run in runs) for name, runs in results.items()
    }
    ours = results["llmctl, 0 workers"]
    again = settings["tokens"] / statistics.median(run["again"] for run in ours)
    if len({found["rows"] for found in digests.values()}) > 1:
        raise SystemExit(f"not all delivered the same sequences: {digests}")
    print(
        json.dumps(
            {
                "tokens": settings["tokens"],
                "settings": settings,
                "same_order_as_llmctl": [
                    name
                    for name, found in digests.items()
                    if found["ordered"] == digests["llmctl, 0 workers"]["ordered"]
                ],
                "million_tokens_per_s": {name: round(rate / 1e6, 2) for name, rate in rates.items()},
                "llmctl_again_million_tokens_per_s": round(again / 1e6, 2),
                "prepare_epoch_s": round(statistics.median(run["prepare"] for run in ours), 4),
                "times_as_fast": {
                    name: round(rates["llmctl, 0 workers"] / rate, 2)
                    for name, rate in rates.items()
                    if "llmctl" not in name
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
