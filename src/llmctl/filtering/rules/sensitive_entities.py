"""Find sensitive entities and report, mask or drop: e-mail, cards, numbers of the person, keys, case numbers and so on.

`--pii MODE` sets this rule for every source. With `report` they are counted; with `mask` each is replaced by its type,
such as `<EMAIL>`, and no document goes; with `drop` a document with more of them than `max` is removed. What is counted
and masked is the text that the line rules leave; texts in `removed/` are masked too unless the mode is `report`.
The types, their patterns and checks are in the reference under "Sensitive entities".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.filtering.pii.catalogue import DEFAULT, selected_types
from llmctl.filtering.rule import ScoreParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("sensitive_entities",)


@dataclass
class Parameters(ScoreParameters):
    """What to look for, and what becomes of it."""

    mode: Annotated[
        Literal["report", "mask", "drop"], Opt("Count them, replace them by their type, or remove the document.")
    ] = "report"
    types: Annotated[
        list[str],
        Opt(
            "Types, families, `all`, `default` (all but those of low confidence), `high`, `medium` or `low`; a `-` "
            "before a name takes it away."
        ),
    ] = field(default_factory=lambda: [DEFAULT])
    consistent: Annotated[
        bool, Opt("Number the placeholders, so that equal values of a document stay equal: `<EMAIL_1>`.")
    ] = False
    max: Annotated[float | None, Opt("Most entities of a document that stays, with mode `drop`.", min=0)] = 0

    def validate(self) -> None:
        """Check the types.

        Raises:
            UserError: an unknown type, or none left.
        """
        selected_types(self.types)


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]; NaN where no document goes for it."""
    import numpy as np

    counts = columns["sensitive_entities"]
    return counts if parameters.mode == "drop" else np.full(len(counts), np.nan)
