"""The formats in which token ids lie in files."""

from __future__ import annotations

from llmctl.sharding.formats.base import BrokenFile, Format, Layout
from llmctl.sharding.formats.mds import Mds
from llmctl.sharding.formats.megatron import Megatron
from llmctl.sharding.formats.parquet import Parquet
from llmctl.sharding.formats.tfrecord import TfRecord

FORMATS: dict[str, Format] = {format.name: format for format in (TfRecord(), Megatron(), Mds(), Parquet())}

__all__ = ["FORMATS", "BrokenFile", "Format", "Layout"]
