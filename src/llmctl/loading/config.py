"""What can be set about the mixture of sources: a table of phases × sources."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

from llmctl.config.schema import Opt
from llmctl.errors import UserError


@dataclass
class MixturePhase:
    """One row of the table: from when on, and the weight of each column."""

    start: Annotated[float, Opt("Share of the steps at which the phase begins; it lasts until the next.", min=0)] = 0.0
    weights: Annotated[dict[str, float], Opt("Weight of each group or source; only their proportions count.")] = field(
        default_factory=dict
    )


@dataclass
class MixtureConfig:
    """A table of phases × sources; without phases all documents are one source."""

    phases: Annotated[list[MixturePhase], Opt("The rows: `start` and `weights` of each phase.", flag=False)] = field(
        default_factory=list
    )
    groups: Annotated[
        dict[str, list[str]],
        Opt("Sources of each column, as names or patterns (`wiki*`); a column that is not named here is a source."),
    ] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Return the columns of the table, in the order in which they are first named."""
        return list(dict.fromkeys(name for phase in self.phases for name in phase.weights))

    def validate(self) -> None:
        """Check the table as a whole.

        Raises:
            UserError: names the phase or group that makes no sense.
        """
        starts = [phase.start for phase in self.phases]
        if starts and starts[0] != 0:
            raise UserError(f"the first phase of `mixture` starts at {starts[0]:g}", "let it start at 0")
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise UserError("the phases of `mixture` are not in order of `start`", "sort them; no two may be equal")
        if starts and starts[-1] >= 1:
            raise UserError(f"a phase of `mixture` starts at {starts[-1]:g}", "starts are shares of the steps, below 1")
        for phase in self.phases:
            weights = phase.weights.values()
            if any(weight < 0 or not math.isfinite(weight) for weight in weights) or not sum(weights) > 0:
                raise UserError(
                    f"the weights of the phase of `mixture` that starts at {phase.start:g} make no shares",
                    "give numbers of at least 0, one of them above 0",
                )
        unknown = [name for name in self.groups if self.phases and name not in self.columns]
        if unknown:
            raise UserError(
                f"the group `{unknown[0]}` of `mixture` has no weight in any phase",
                "give it a weight (0 leaves its sources out)",
            )
