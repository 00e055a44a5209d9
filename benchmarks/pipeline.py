"""The idle share of pipeline schedules: measured, and as `llmctl plan` simulates it.

    python benchmarks/pipeline.py [--stages 2] [--micro-batches 4] [--steps 5]

One process per stage, one thread each (as many cores as stages should be free). Idle is the share of the time of
all stages in which none of them computes; the simulation gets the measured seconds of forward and backward passes of
each stage (a zero-bubble backward pass counts half for the inputs, half for the weights). Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

from llmctl.config.load import build
from llmctl.planning.schedule import StageTimes, orders_of, simulate
from llmctl.pretraining.config import PretrainConfig
from llmctl.training.distributed import connect
from llmctl.training.engines.choose import make_engine
from llmctl.training.engines.common import Phases
from llmctl.training.losses.next_token import NextTokenLoss
from llmctl.training.models import build_model

MODEL = {
    "vocab_size": 512,
    "num_layers": 8,
    "hidden_size": 256,
    "num_heads": 4,
    "num_kv_heads": 4,
    "ffn_hidden_size": 704,
}
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1}
LENGTH = 256


def worker(stages: int, micro_batches: int, steps: int) -> None:
    """Run every schedule as one stage; the first prints seconds by stage."""
    results = {}
    base = {"model": MODEL, "precision": "fp32", "engine": "native", "device": "cpu", "pp": stages, "threads": 1}
    base |= {"global_batch_size": micro_batches, "micro_batch_size": 1, "seq_len": LENGTH}
    for name, chunks in SCHEDULES.items():
        config = build(PretrainConfig, {**base, "schedule": name, "virtual_stages": chunks})
        world = connect(config)
        engine: Any = make_engine(build_model(config.model, config, world), config, world)
        ids = torch.randint(0, 512, (micro_batches, LENGTH + 1), generator=torch.Generator().manual_seed(0))
        batches = [{"input_ids": row[None, :-1], "labels": row[None, 1:]} for row in ids]
        engine.step(batches, NextTokenLoss(), 1e-4)
        rows = []
        for _ in range(steps):
            world.barrier()
            phases, started = Phases(), time.perf_counter()
            engine.model.train()
            engine._pipeline.train(batches, NextTokenLoss(), 1e-3, phases)
            wall = time.perf_counter() - started
            engine.optimizer.zero_grad()
            rows.append((phases.seconds["forward"], phases.seconds["backward"], wall))
        mine = [statistics.median(column) for column in zip(*rows, strict=True)]
        flat = [0.0] * (3 * stages)
        flat[3 * world.pp_rank : 3 * world.pp_rank + 3] = mine
        results[name] = world.sum(flat)
    if world.is_main:
        print(json.dumps(results), flush=True)
    world.barrier()
    os._exit(0)


def compare(measured: dict[str, list[float]], stages: int, micro_batches: int) -> dict[str, Any]:
    """Return measured and simulated idle shares by schedule."""
    table = {}
    for name, flat in measured.items():
        chunks = SCHEDULES[name]
        forward, backward, walls = flat[0::3], flat[1::3], flat[2::3]
        span = max(walls)
        busy = sum(forward) + sum(backward)
        each = micro_batches * chunks
        times = [
            StageTimes(forward[stage] / each, backward[stage] / each / 2, backward[stage] / each / 2)
            for _ in range(chunks)
            for stage in range(stages)
        ]
        simulated = simulate(orders_of(name, stages, micro_batches, chunks), times, 0.0, chunks)
        table[name] = {
            "milliseconds": round(span * 1e3, 1),
            "idle_measured": round(1 - busy / (stages * span), 3),
            "idle_simulated": round(simulated.bubble_fraction, 3),
        }
    return table


def main() -> None:
    """Start a process per stage and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        worker(arguments.stages, arguments.micro_batches, arguments.steps)
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(arguments.stages):
            environment = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(arguments.stages),
                "LOCAL_WORLD_SIZE": str(arguments.stages),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "LLMCTL_RENDEZVOUS": f"file://{folder}/meet",
            }
            command = [sys.executable, *sys.argv]
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    measured = json.loads(outputs[0].splitlines()[-1])
    facts = {"stages": arguments.stages, "micro_batches": arguments.micro_batches}
    print(json.dumps({**facts, **compare(measured, arguments.stages, arguments.micro_batches)}, indent=2))


if __name__ == "__main__":
    main()
