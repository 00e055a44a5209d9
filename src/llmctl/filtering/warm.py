"""Import what a worker of the filter needs and load its kernels: importing this module does it."""

from __future__ import annotations

from contextlib import suppress

from llmctl.filtering.models import Models
from llmctl.filtering.stage import warm_up

with suppress(Exception):  # a worker that meets the fault itself tells it better
    warm_up(Models())
