"""Remove documents with any word of a list that you give: `--bad-words FILE`, one word or phrase a line, `#` comments.

A word counts at its edges only (C4: `(?:\\W|^)word(?:\\W|$)`), in scripts without spaces anywhere; case does not count.
C4 took its list from LDNOOBW and removed a page for a single word; no such list ships here, choose yours.
Source of 0: Raffel et al. 2020 (C4), section 2.2; tensorflow_datasets `text/c4_utils.py`, `get_badwords_filter_fn`.
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

COLUMNS = ("num_bad_words",)
PHRASES_COLUMN = "num_bad_words"


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    max: Annotated[float | None, Opt("Most words of the list (C4: 0).", min=0)] = 0
    words: Annotated[list[str], Opt("The words and phrases that count; case does not.")] = field(default_factory=list)

    def validate(self) -> None:
        """Check that there is a list.

        Raises:
            UserError: no words.
        """
        if not self.words:
            raise UserError("the rule `bad_words` has no words", "give a list: --bad-words FILE, one word a line")


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["num_bad_words"]
