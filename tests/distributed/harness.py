"""Run training cases in N processes on this machine and compare them with one process.

`run_cases(N, cases)` starts N processes once; each runs every case with its layout, and the first writes the results.
A case is a configuration (see `BASE`) plus `save` and `load` folders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SEQ_LEN = 16
BASE: dict[str, Any] = {
    "steps": 10,
    "seq_len": SEQ_LEN,
    "global_batch_size": 8,
    "micro_batch_size": 2,
    "precision": "fp32",
    "optimizer": "adamw",
    "max_grad_norm": 0.7,
    "device": "cpu",
    "threads": 1,
    "timeout_s": 120,
    "model": {
        "vocab_size": 61,
        "num_layers": 4,
        "hidden_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "ffn_hidden_size": 48,
        "dropout": 0.1,
    },
}
LR = {"adamw": 1e-2, "sgd": 0.3, "lamb": 1e-2}


def case(**changes: Any) -> dict[str, Any]:
    """Return `BASE` with changes; `model` is merged."""
    model = {**BASE["model"], **changes.pop("model", {})}
    return {**BASE, **changes, "model": model}


def reference_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return the same case for one process of the native engine."""
    plain = {"engine": "native", "zero_stage": 0, "tp": 1, "pp": 1, "micro_batch_size": 8, "recompute": "none"}
    split = ("sequence_parallel", "schedule", "virtual_stages")
    return {**{key: value for key, value in case.items() if key not in split}, **plain}


def global_batch(step: int, size: int, vocab_size: int, length: int = SEQ_LEN) -> dict[str, Any]:
    """Return the whole batch of a step: several documents a row, and rows with very different numbers of labels."""
    import torch

    generator = torch.Generator().manual_seed(100 + step)
    ids = torch.randint(0, vocab_size, (size, length + 1), generator=generator)
    labels = ids[:, 1:].clone()
    for row in range(size):
        labels[row, 2 + (row * 5 + step) % (length - 2) :] = -100
    cut = torch.randint(1, length, (size, 1), generator=generator)
    places = torch.arange(length).expand(size, -1)
    return {
        "input_ids": ids[:, :-1],
        "labels": labels,
        "document_ids": (places >= cut).long(),
        "position_ids": torch.where(places >= cut, places - cut, places),
        "dropout_keys": torch.randint(0, 1 << 60, (size,), generator=generator),
    }


def peak_memory() -> Any:
    """Return a context that counts the bytes of live tensors made inside it; `peak` is the most at once."""
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Peak(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.live = self.peak = 0
            self.known: weakref.WeakSet = weakref.WeakSet()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage()) not in self.known:
                    self.known.add(storage)
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self.free, storage.nbytes())
            return result

        def free(self, size: int) -> None:
            self.live -= size

    return Peak()


def perturb(engine: Any, name: str) -> None:
    """Flip one bit of one element of a parameter (not the lowest, which the next update could round away)."""
    import torch

    parameter = dict(engine.model.named_parameters())[name]
    with torch.no_grad():
        words = parameter.view(torch.int32).flatten()
        words[words.numel() // 2] ^= 1 << 14


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Run one case in this process, as one of the processes of its layout."""
    import contextlib
    import hashlib

    import torch

    from llmctl.config.load import build
    from llmctl.errors import RunFailed
    from llmctl.model.huggingface import read_model_config
    from llmctl.pretraining.config import PretrainConfig
    from llmctl.training.distributed import connect
    from llmctl.training.engines.choose import make_engine
    from llmctl.training.layout import micro_batch_size
    from llmctl.training.losses.next_token import NextTokenLoss
    from llmctl.training.models import build_model

    case = dict(case)
    save, load, steps, first, lr = (case.pop(key, None) for key in ("save", "load", "run_steps", "first_step", "lr"))
    measure, flip = case.pop("measure", False), case.pop("flip", None)
    folder, tokens = case.pop("weights", None), case.pop("tokens", None)
    config = build(PretrainConfig, case)
    world = connect(config)
    shape = read_model_config(folder) if folder else config.model
    engine = make_engine(build_model(shape, config, world, folder), config, world)
    if load:
        engine.load(Path(load))
    losses, norms, peak_bytes = [], [], 0.0
    micro = micro_batch_size(config, world.layout.dp)
    share = config.global_batch_size // world.layout.dp
    for step in range(first or 0, (first or 0) + (steps or 6)):
        whole = global_batch(step, config.global_batch_size, config.model.vocab_size or 2, config.seq_len)
        if tokens:
            ids = torch.tensor(tokens)
            whole = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
        starts = range(world.dp_rank * share, (world.dp_rank + 1) * share, micro)
        batches = [{name: tensor[start : start + micro] for name, tensor in whole.items()} for start in starts]
        if flip and step == 1 and world.rank == flip["rank"]:
            perturb(engine, flip["name"])
        peak = peak_memory() if measure and step == 1 else contextlib.nullcontext()
        try:
            with peak:
                report = engine.step(batches, NextTokenLoss(), lr or LR[config.optimizer])
        except RunFailed as failure:
            return {"failure": failure.problem, "step": step}
        if measure and step == 1:
            (peak_bytes,) = world.maximum([float(peak.peak)])
        losses.append(report.loss)
        norms.append(report.grad_norm)
    evaluated = engine.evaluate(batches, NextTokenLoss()).loss
    digest = hashlib.sha256()
    weights = {}
    for name, tensor in engine.full_weights():
        if world.is_main:
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
            weights[name] = float(tensor.double().square().sum())
    if save:
        engine.save(Path(save))
    replicated = sum(float(p.detach().double().sum()) for p in engine.model.parameters() if p.numel())
    per_replica = world.maximum([replicated if world.pp_rank == 0 and world.tp_rank == 0 else -1e30])
    same = per_replica[0] == replicated or config.zero_stage == 3 or world.pp_rank or world.tp_rank
    (differing,) = world.sum([0.0 if same else 1.0])
    states = engine.optimizer.state.values() if engine.name == "native" else ()
    held = sum(value.nbytes for state in states for value in state.values() if torch.is_tensor(value))
    (state_bytes,) = world.maximum([float(held)])
    engine.close()
    del engine
    torch.manual_seed(0)
    return {
        "losses": losses,
        "norms": norms,
        "evaluated": evaluated,
        "digest": digest.hexdigest(),
        "weights": weights,
        "differing_replicas": differing,
        "peak_bytes": peak_bytes,
        "state_bytes": state_bytes,
    }


def run_cases(world_size: int, cases: list[dict[str, Any]], folder: Path, timeout: float = 600) -> list[dict[str, Any]]:
    """Run cases in `world_size` processes and return process 0's results."""
    (folder / "cases.json").write_text(json.dumps(cases))
    processes = []
    for rank in range(world_size):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "LLMCTL_RENDEZVOUS": f"file://{folder}/rendezvous",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        log = open(folder / f"rank-{rank}.log", "wb")  # noqa: SIM115
        processes.append(
            subprocess.Popen([sys.executable, __file__, str(folder)], env=environment, stdout=log, stderr=log)
        )
    try:
        for process in processes:
            process.wait(timeout=timeout)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failed = [rank for rank, process in enumerate(processes) if process.returncode]
    if failed:
        logs = "\n".join((folder / f"rank-{rank}.log").read_text()[-3000:] for rank in failed)
        raise AssertionError(f"processes {failed} failed:\n{logs}")
    return json.loads((folder / "results.json").read_text())


def main() -> None:
    """Run all cases as one process."""
    folder = Path(sys.argv[1])
    results = [run_case(case) for case in json.loads((folder / "cases.json").read_text())]
    if os.environ["RANK"] == "0":
        (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
    os._exit(0)
