"""Tokens a second of a training step, against a bare PyTorch loop and against the machine's own bf16 matrix product.

    python benchmarks/pretrain.py [--rounds 5] [--steps 4] [--threads N] [--engine native|deepspeed] [--compile]
    python benchmarks/pretrain.py --data-parallel

One process, a Llama of about 23 million parameters, batch 4 × 512, bf16 over float32 master weights. Peers: the
same in `transformers.LlamaForCausalLM`, autocast, fused AdamW, clipping, loss over the whole logits, in a bare loop and
in `transformers.Trainer` with bf16. The contestants take turns; medians over the rounds. `--data-parallel` compares two
processes of one thread each with one process of two threads, and says where the time of a step goes. Prints one JSON
object.
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
from collections.abc import Callable
from typing import Any

import torch

from llmctl.config.load import build
from llmctl.model.huggingface import exported_config
from llmctl.model.transformer import Transformer
from llmctl.pretraining.config import PretrainConfig
from llmctl.training.distributed import World, connect
from llmctl.training.engines.choose import make_engine
from llmctl.training.losses.next_token import NextTokenLoss

BATCH, LENGTH = 4, 512
MODEL = {
    "vocab_size": 27_000,
    "num_layers": 8,
    "hidden_size": 384,
    "num_heads": 6,
    "num_kv_heads": 2,
    "ffn_hidden_size": 1024,
    "max_seq_len": LENGTH,
}


def peer_model() -> Any:
    """Return the model in the class of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = build(PretrainConfig, {"model": MODEL})
    shape = {
        key: value for key, value in exported_config(config.model).items() if key not in ("architectures", "model_type")
    }
    return LlamaForCausalLM(LlamaConfig(**shape, attn_implementation="sdpa"))


def trainer_rate(steps: int) -> float:
    """Return the tokens a second of `transformers.Trainer`; the first step does not count."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *arguments: Any, **more: Any) -> None:
            ends.append(time.perf_counter())

    rows = torch.randint(0, MODEL["vocab_size"], (BATCH * (steps + 1), LENGTH))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps + 1,
            per_device_train_batch_size=BATCH,
            bf16=True,
            use_cpu=True,
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        data = [{"input_ids": row, "labels": row} for row in rows]
        Trainer(peer_model(), arguments, train_dataset=data, callbacks=[Clock()]).train()
    return steps * BATCH * LENGTH / (ends[-1] - ends[0])


def bare_loop() -> Callable[[torch.Tensor], float]:
    """Return one step of the bare loop."""
    model = peer_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)

    def step(tokens: torch.Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def our_step(engine_name: str, documents: bool, compiled: bool = False) -> Callable[[torch.Tensor], float]:
    """Return one step of llmctl; with `documents` also what isolating packed documents costs."""
    config = build(PretrainConfig, {"model": MODEL, "precision": "bf16", "engine": engine_name, "compile": compiled})
    engine = make_engine(Transformer(config.model, seed=0), config, World())
    loss = NextTokenLoss()

    def step(tokens: torch.Tensor) -> float:
        batch = {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}
        if documents:
            batch["document_ids"] = (torch.arange(LENGTH) // 200).expand(BATCH, -1)
        return float(engine.step([batch], loss, 1e-4).loss)

    return step


def matmul_flops() -> float:
    """Return the bf16 rate of a matrix product of the model's largest shape, FLOP/s."""
    a = torch.randn(BATCH * LENGTH, 384, dtype=torch.bfloat16)
    b = torch.randn(384, 27_000, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / best


def data_parallel_worker(steps: int) -> None:
    """Train as one of RANK of WORLD_SIZE processes; the first prints rate and seconds by phase."""
    config = build(PretrainConfig, {"model": MODEL, "precision": "bf16", "engine": "native", "device": "cpu"})
    world = connect(config)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    engine = make_engine(Transformer(config.model, seed=0), config, world)
    # Two batches of 4 × 512 a step, on one process or two.
    batches = [torch.randint(0, MODEL["vocab_size"], (BATCH, LENGTH + 1)) for _ in range(2 // world.world_size)]
    whole = [{"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]} for tokens in batches]
    engine.step(whole, NextTokenLoss(), 1e-4)
    rates, phases = [], []
    for _ in range(steps):
        started = time.perf_counter()
        report = engine.step(whole, NextTokenLoss(), 1e-4)
        rates.append(2 * BATCH * LENGTH / (time.perf_counter() - started))
        phases.append(report.seconds)
    if world.is_main:
        seconds = {name: round(statistics.median(item[name] for item in phases), 4) for name in phases[0]}
        print(json.dumps({"tokens_per_s": round(statistics.median(rates), 1), "seconds": seconds}))
    world.barrier()
    sys.stdout.flush()
    os._exit(0)


def data_parallel(steps: int) -> dict[str, Any]:
    """Return what two processes of one thread and one process of two threads come to."""
    results = {}
    for count in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            processes = []
            for rank in range(count):
                environment = os.environ | {"OMP_NUM_THREADS": str(2 // count), "GLOO_SOCKET_IFNAME": "lo"}
                if count > 1:
                    environment |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
                    environment |= {"LOCAL_WORLD_SIZE": "2", "LLMCTL_RENDEZVOUS": f"file://{folder}/meet"}
                command = [sys.executable, __file__, "--worker", "--steps", str(steps)]
                processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
            outputs = [process.communicate(timeout=600)[0] for process in processes]
        results[f"{count} × {2 // count} threads"] = json.loads(outputs[0].splitlines()[-1])
    one, two = results.values()
    return {**results, "ratio": round(two["tokens_per_s"] / one["tokens_per_s"], 3)}


def main() -> None:
    """Let the contestants take turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--engine", default="native")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--data-parallel", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        data_parallel_worker(arguments.steps)
    if arguments.data_parallel:
        print(json.dumps(data_parallel(arguments.steps), indent=2, ensure_ascii=False))
        return
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    contestants = {
        "bare": bare_loop(),
        "llmctl": our_step(arguments.engine, documents=False),
        "llmctl_packed": our_step(arguments.engine, documents=True),
    }
    if arguments.compile:
        contestants["llmctl_compiled"] = our_step(arguments.engine, documents=False, compiled=True)
    tokens = torch.randint(0, MODEL["vocab_size"], (BATCH, LENGTH + 1))
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for step in contestants.values():
        step(tokens)
    for _ in range(arguments.rounds):
        for name, step in contestants.items():
            started = time.perf_counter()
            for _ in range(arguments.steps):
                step(tokens)
            rates[name].append(arguments.steps * BATCH * LENGTH / (time.perf_counter() - started))
        rates.setdefault("trainer", []).append(trainer_rate(arguments.steps))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    model = build(PretrainConfig, {"model": MODEL}).model
    flops = model.flops_per_token(LENGTH)
    peak = matmul_flops()
    result: dict[str, Any] = {
        "parameters": model.num_parameters(),
        "threads": torch.get_num_threads(),
        "engine": arguments.engine,
        "tokens_per_s": {name: round(rate, 1) for name, rate in medians.items()},
        "ratio_to_bare": {name: round(rate / medians["bare"], 3) for name, rate in medians.items()},
        "ratio_to_trainer": {name: round(rate / medians["trainer"], 3) for name, rate in medians.items()},
        "matmul_bf16_gflops": round(peak / 1e9, 1),
        "share_of_matmul_rate": {name: round(rate * flops / peak, 3) for name, rate in medians.items()},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
