"""Import what a worker of the dedup needs and load its kernels: importing this module does it."""

from __future__ import annotations

from contextlib import suppress

from llmctl.dedup.bands import choose_bands
from llmctl.dedup.config import DedupConfig
from llmctl.dedup.signatures import SignContext, warm_up

with suppress(Exception):  # a worker that meets the fault itself tells it better
    _config = DedupConfig()
    warm_up(SignContext("", "", _config, choose_bands(_config.threshold, _config.num_perm, _config.min_recall)))
