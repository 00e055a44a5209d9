"""Read a well-formed log of numbers at speed; anything else is left to the tolerant reader."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from llmctl.diagnosis.columns import Columns, Series

# Below this the tolerant reader is as quick, and types are guessed from too few lines.
MIN_BYTES = 200_000
BLOCK_BYTES = 16_000_000


def read_fast(path: Path) -> Columns | None:
    """Return the columns of a JSON-lines file whose lines all have the same numeric keys and a rising ``step``.

    Returns:
        None if the file is small, cut off, broken, repeats steps, or has nulls, text or nested values.
    """
    import pyarrow as pa
    from pyarrow import json

    try:
        data = path.read_bytes()
        if len(data) < MIN_BYTES or not data.endswith(b"\n"):
            return None
        options = json.ReadOptions(use_threads=True, block_size=BLOCK_BYTES)
        table = json.read_json(io.BytesIO(data), read_options=options)
    except (OSError, pa.ArrowException):
        return None
    # Arrow takes two objects on one line for two rows; the tolerant reader calls such a line broken.
    if table.num_rows != data.count(b"\n") or "step" not in table.column_names:
        return None
    for field, column in zip(table.schema, table.columns, strict=True):
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        if not numeric or column.null_count:
            return None
    steps = table.column("step").to_numpy()
    if not np.issubdtype(steps.dtype, np.integer) or np.any(np.diff(steps) <= 0):
        return None
    return Columns(
        {
            name: Series(steps, table.column(name).to_numpy().astype(np.float64))
            for name in table.column_names
            if name != "step"
        }
    )
