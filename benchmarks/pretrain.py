"""Tokens a second of a training step, against a bare PyTorch loop and against the machine's own bf16 matrix product.

    python benchmarks/pretrain.py [--rounds 5] [--steps 4] [--threads N] [--engine native|deepspeed]

One process, a Llama of about 23 million parameters, batch 4 × 512, bf16 over float32 master weights. Peer: the same
shape in `transformers.LlamaForCausalLM`, autocast, fused AdamW, clipping, loss over the whole logits. The contestants
take turns; medians over the rounds. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from llmctl.config.load import build
from llmctl.model.huggingface import exported_config
from llmctl.model.transformer import Transformer
from llmctl.pretraining.config import PretrainConfig
from llmctl.training.distributed import World
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


def bare_loop() -> Callable[[torch.Tensor], float]:
    """Return one step of the bare loop."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = build(PretrainConfig, {"model": MODEL})
    shape = {
        key: value for key, value in exported_config(config.model).items() if key not in ("architectures", "model_type")
    }
    model = LlamaForCausalLM(LlamaConfig(**shape, attn_implementation="sdpa"))
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


def our_step(engine_name: str, documents: bool) -> Callable[[torch.Tensor], float]:
    """Return one step of llmctl; with `documents` also what isolating packed documents costs."""
    config = build(PretrainConfig, {"model": MODEL, "precision": "bf16", "engine": engine_name})
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


def main() -> None:
    """Let the contestants take turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--engine", default="native")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    contestants = {
        "bare": bare_loop(),
        "llmctl": our_step(arguments.engine, documents=False),
        "llmctl_packed": our_step(arguments.engine, documents=True),
    }
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
        "matmul_bf16_gflops": round(peak / 1e9, 1),
        "share_of_matmul_rate": {name: round(rate * flops / peak, 3) for name, rate in medians.items()},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
