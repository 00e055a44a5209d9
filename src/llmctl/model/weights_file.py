"""Write one safetensors file; a full disk is told as the system's own error, and leaves nothing behind."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors to `path`.

    Raises:
        OSError: the file cannot be written; the library hides the system's error in one of its own.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as failure:
        path.unlink(missing_ok=True)
        number = errno.ENOSPC if "No space" in str(failure) else errno.EIO
        raise OSError(number, str(failure), str(path)) from failure
