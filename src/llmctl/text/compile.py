"""Compile kernels with numba, with a cache that notices every edit.

numba keys its cache by the file of the compiled function alone and does not notice an edited kernel that it calls
from another file (stale results were seen). So the cache folder carries a hash of all sources in this package.

    @kernel
    def count_words(data, offsets, classes): ...
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import numba


def _cache_folder() -> Path:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(f"{numba.__version__} {platform.machine()} {platform.python_version()}".encode())
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "llmctl" / "kernels" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    # A home that cannot be written to (containers): compile once per user and machine start.
    return Path(tempfile.gettempdir()) / f"llmctl-kernels-{os.getuid()}-{digest.hexdigest()[:16]}"


numba.config.CACHE_DIR = str(_cache_folder())  # type: ignore[attr-defined]


def kernel(function: Any) -> Any:
    """Compile `function` without the interpreter lock; no fastmath, so that results are the same everywhere."""
    return numba.njit(function, nogil=True, cache=True, fastmath=False)


def inline_kernel(function: Any) -> Any:
    """Compile a small helper that kernels call; it is inlined by the compiler."""
    return numba.njit(function, nogil=True, cache=True, inline="never", fastmath=False)
