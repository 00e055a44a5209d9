"""What `llmctl diagnose` looks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from llmctl.config.schema import Opt


@dataclass
class DiagnoseConfig:
    """Which rules judge a run, and where their limits lie."""

    rules: Annotated[
        list[str], Opt("Judge by these rules only; all of them if none is named.", aliases=("--rule",))
    ] = field(default_factory=list)
    thresholds: Annotated[
        dict[str, dict[str, Any]],
        Opt("Limits of single rules, by rule and name; `llmctl diagnose --explain RULE` lists them.", flag=False),
    ] = field(default_factory=dict)
