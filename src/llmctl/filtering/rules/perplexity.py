"""Remove documents by their perplexity under an n-gram model that you trained: too odd, or too smooth.

`llmctl perplexity train` makes the model, `--perplexity-model FOLDER` puts it to work. Numbers of other models mean
nothing here (another tokenizer, another reference text), so the rule has no limits of its own; training prints the
percentiles of documents that the model had not seen. Documents of fewer than 20 tokens are not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.errors import UserError
from llmctl.filtering.rule import ScoreParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("perplexity",)


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Least perplexity of a document that stays.", min=0)] = None
    max: Annotated[float | None, Opt("Largest perplexity of a document that stays.", min=0)] = None

    def validate(self) -> None:
        """Refuse a rule without limits.

        Raises:
            UserError: neither limit is given.
        """
        if self.min is None and self.max is None:
            raise UserError(
                "the rule `perplexity` needs a limit of yours",
                "write `perplexity: {max: 1000}`; `llmctl show` on the model has the percentiles of its own text",
            )


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["perplexity"]
