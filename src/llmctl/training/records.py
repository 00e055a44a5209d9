"""What a run writes while it goes: metrics, validation, events of each process, TensorBoard."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

METRICS, VALIDATION, EVENTS, TENSORBOARD = "metrics.jsonl", "validation.jsonl", "events", "tensorboard"


def _plain(value: Any) -> Any:
    """Round floats to what float32 carries, large ones to thousandths; NaN and infinity, which JSON lacks, are null."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return round(value, 3) if abs(value) >= 1e6 else float(f"{value:.9g}")
    return value


class JsonLines:
    """A JSONL file that survives kills: whole lines only, cut back to a step when a run resumes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None

    def cut_after(self, step: int) -> None:
        """Drop lines of later steps (they will be made again), and a broken last line."""
        if not self.path.is_file():
            return
        kept = []
        for line in self.path.read_bytes().splitlines():
            try:
                if int(json.loads(line)["step"]) <= step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue
        temporary = self.path.with_name(f"{self.path.name}.tmp-cut")
        temporary.write_bytes(b"".join(line + b"\n" for line in kept))
        os.replace(temporary, self.path)

    def write(self, line: dict[str, Any]) -> None:
        """Append one line."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "ab")  # noqa: SIM115 - open as long as the run
        text = json.dumps({name: _plain(value) for name, value in line.items()}, allow_nan=False)
        self._file.write(text.encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoard:
    """TensorBoard scalars, or nothing where they are switched off."""

    def __init__(self, folder: Path, enabled: bool, from_step: int) -> None:
        self._writer: Any = None
        if enabled:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=from_step if from_step > 1 else None)

    def scalars(self, prefix: str, values: dict[str, Any], step: int) -> None:
        """Write the numbers among `values`."""
        if self._writer is None:
            return
        for name, value in values.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(f"{prefix}/{name}", value, step)

    def close(self) -> None:
        """Write out what is buffered."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def write_host(folder: Path, rank: int, device: Any) -> None:
    """Write down on which host and device a process runs; no run may fail for it."""
    import socket

    from llmctl.training.distributed import address_towards

    meeting = os.environ.get("LLMCTL_RENDEZVOUS", "").removeprefix("tcp://").rpartition(":")[0]
    towards = meeting or os.environ.get("MASTER_ADDR", "")
    described = {
        "host": socket.gethostname(),
        "address": address_towards(towards) if towards and "/" not in towards else None,
        "device": str(device),
        "pid": os.getpid(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"host-{rank}.json").write_text(json.dumps(described))
    except OSError:
        pass


def memory_bytes(device: Any) -> int:
    """Return the peak memory of this process on its device (resident memory on the CPU)."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
