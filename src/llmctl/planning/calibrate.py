"""Measure the machine at hand: matrix products, memory bandwidth, and an all-reduce between two processes."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from llmctl.errors import RunFailed

SECONDS_EACH = 1.0
ALL_REDUCE_BYTES = 16 << 20
PEER_TIMEOUT_S = 60
# First words of a file written here; another file is not written over.
MARK = "# Measured by `llmctl plan --calibrate`"


@dataclass(frozen=True)
class Measured:
    """Figures of one device (a CPU process on one thread, or a GPU).

    Attributes:
        name: of the hardware entry: ``cpu`` or ``cuda``.
        matmul_tflops: best rate of a large matrix product in the training precision (float32 on a CPU).
        rows_half: rows at which a product reaches half of that.
        work_half: FLOPs at which it does.
        memory_gbps: bandwidth of a copy, read and written bytes together.
        link_gbps: bus bandwidth of an all-reduce between two processes.
        memory_gb: memory of the device (of the machine, divided among its cores).
    """

    name: str
    matmul_tflops: float
    rows_half: float
    work_half: float
    memory_gbps: float
    link_gbps: float
    memory_gb: float


def measure() -> Measured:
    """Measure this machine in a few seconds.

    Raises:
        RunFailed: two processes cannot reach each other on this host.
    """
    import torch

    cuda = torch.cuda.is_available()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        device, kind = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
        large = _product_rate(8192 if cuda else 1024, 8192 if cuda else 1024, device, kind)
        rows_half = _rows_half(large, device, kind)
        work_half = _work_half(large, device, kind)
        memory = _copy_rate(device)
    finally:
        torch.set_num_threads(threads)
    size = torch.cuda.get_device_properties(0).total_memory if cuda else _memory_of_a_core()
    return Measured(
        "cuda" if cuda else "cpu", large / 1e12, rows_half, work_half, memory / 1e9, _link_rate(), size / 1e9
    )


def _memory_of_a_core() -> float:
    import psutil

    return psutil.virtual_memory().total / max(1, len(os.sched_getaffinity(0)))


def _timed(function: Callable[[], object], device: str) -> float:
    """Return the median seconds of a call, after a warm-up."""
    import torch

    def once() -> float:
        started = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    once()
    samples: list[float] = []
    ends = time.perf_counter() + SECONDS_EACH
    while len(samples) < 5 or (time.perf_counter() < ends and len(samples) < 200):
        samples.append(once())
    return statistics.median(samples)


def _product_rate(rows: int, width: int, device: str, kind: object) -> float:
    import torch

    left = torch.randn(rows, width, device=device).to(kind)  # type: ignore[call-overload]
    right = torch.randn(width, width, device=device).to(kind)  # type: ignore[call-overload]
    return 2.0 * rows * width * width / _timed(lambda: left @ right, device)


def _rows_half(large: float, device: str, kind: object) -> float:
    """Return r of rate = large · rows / (rows + r), from a product with few rows."""
    rows, width = (256, 8192) if device == "cuda" else (16, 1024)
    rate = min(_product_rate(rows, width, device, kind), 0.999 * large)
    return rows * (large / rate - 1)


def _work_half(large: float, device: str, kind: object) -> float:
    """Return the FLOPs that a small product's fixed time stands for."""
    size = 256 if device == "cuda" else 32
    rate = _product_rate(size, size, device, kind)
    return max(0.0, 2.0 * size**3 * (large / rate - 1))


def _copy_rate(device: str) -> float:
    import torch

    source = torch.ones(64 << 20 if device == "cpu" else 512 << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * source.numel() / _timed(lambda: target.copy_(source), device)


_PEER = """
import os, sys, time, statistics, datetime
import torch, torch.distributed as dist
torch.set_num_threads(1)
rank, size = int(sys.argv[1]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=40))
tensor = torch.ones(size // 4)
samples = []
for _ in range(8):
    dist.barrier()
    started = time.perf_counter()
    dist.all_reduce(tensor)
    samples.append(time.perf_counter() - started)
if rank == 0:
    print(statistics.median(samples[2:]))
dist.destroy_process_group()
"""


def _link_rate() -> float:
    """Return the bus bandwidth in 10⁹ bytes/s: 2(N−1)/N·size over seconds, with two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    peers = [
        subprocess.Popen(
            [sys.executable, "-c", _PEER, str(rank), str(port), str(ALL_REDUCE_BYTES)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        outputs = [peer.communicate(timeout=PEER_TIMEOUT_S) for peer in peers]
    except subprocess.TimeoutExpired:
        raise RunFailed(
            "two processes on this host could not reach each other", "check the loopback interface"
        ) from None
    finally:
        for peer in peers:
            if peer.poll() is None:
                peer.kill()
                peer.wait()
    if any(peer.returncode for peer in peers):
        last = outputs[0][1].strip().splitlines() or outputs[1][1].strip().splitlines() or ["no message"]
        raise RunFailed(f"measuring the all-reduce failed: {last[-1]}")
    return ALL_REDUCE_BYTES / float(outputs[0][0]) / 1e9


def to_toml(measured: Measured) -> str:
    """Return a hardware file with the measured values; everything else stays the table's."""
    base = "" if measured.name == "cpu" else 'base = "h100"\ntitle = "the GPU measured here"\n'
    return (
        f"{MARK}; use with --hw {measured.name} --hw-file FILE.\n"
        f"[{measured.name}]\n{base}"
        f"peak_tflops = {measured.matmul_tflops:.6g}\n"
        f"fp32_tflops = {measured.matmul_tflops:.6g}\n"
        f"matmul_tflops = {measured.matmul_tflops:.6g}\n"
        f"memory_gb = {measured.memory_gb:.6g}\n"
        f"memory_gbps = {measured.memory_gbps:.6g}\n"
        f"link_gbps = {measured.link_gbps:.6g}\n"
        f"[{measured.name}.constants]\n"
        "matmul_share = 1.0\n"
        f"matmul_rows_half = {measured.rows_half:.6g}\n"
        f"matmul_work_half = {measured.work_half:.6g}\n"
        "memory_share = 1.0\n"
        "link_share = 1.0\n"
        "backward_overlap = 0.0\n"
    )
