"""Remove documents whose address is on a list that you give: `--blocked-urls FILE`, one domain or address a line.

A domain blocks itself and what lies below it (`example.org` also `www.example.org`); an entry with a path blocks what
begins with it. The address is the record's field `url`, or its id if that is one; a record without is not judged.
RefinedWeb (Penedo et al. 2023, appendix G.1) and FineWeb block by such lists (UT1); none ships here, and their rules by
words in the address are not there: the presets of those names need a list of yours for that step. Lists may have 2 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.errors import UserError
from llmctl.filtering.rule import ScoreParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("url_blocked",)


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    max: Annotated[float | None, Opt("0 removes what is on the list.", min=0, max=1)] = 0
    entries: Annotated[list[str], Opt("Domains, and addresses without scheme.")] = field(default_factory=list)

    def validate(self) -> None:
        """Check that there is a list.

        Raises:
            UserError: no entries.
        """
        if not self.entries:
            raise UserError("the rule `blocked_urls` has no entries", "give a list: --blocked-urls FILE, one a line")


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]; NaN without an address."""
    return columns["url_blocked"]
