"""Keep documents in certain languages, or those whose language can be told at all.

The language and its score come from fastText's lid.176 (the small form, which ships with a package), on a sample of
the text; what the record itself says does not count. Documents with fewer than 20 letters are not judged.
A document in another language than the listed ones has the value 0. Source of 0.5: cc_net (Wenzek et al. 2020).
Thresholds that were published for other identifiers (langdetect in C4, GlotLID in FineWeb-2) mean something else here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from llmctl.config.schema import Opt
from llmctl.errors import UserError
from llmctl.filtering.languages import LABELS, language_label
from llmctl.filtering.rule import ScoreParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("detected_language", "language_score")


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    min: Annotated[float | None, Opt("Least score of the language (cc_net: 0.5).", min=0, max=1)] = 0.5
    languages: Annotated[list[str], Opt("The languages that stay, such as `en`; none listed: all.")] = field(
        default_factory=list
    )
    thresholds: Annotated[dict[str, Any], Opt("Language → least score, where it differs from `min`.")] = field(
        default_factory=dict
    )

    def validate(self) -> None:
        """Check the languages.

        Raises:
            UserError: a language that the model does not know, or a threshold that is no share.
        """
        self.languages = list(dict.fromkeys(language_label(name) for name in self.languages))
        checked: dict[str, Any] = {}
        for name, threshold in self.thresholds.items():
            if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold <= 1:
                raise UserError(
                    f"the language threshold of `{name}` must be a number from 0 to 1, got {threshold!r}",
                    "write `language: {thresholds: {en: 0.65}}`",
                )
            checked[language_label(name)] = float(threshold)
        self.thresholds = checked


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    import numpy as np

    scores = columns["language_score"]
    if not parameters.languages:
        return scores
    listed = np.array([label in parameters.languages for label in LABELS])
    codes = columns["detected_language"]
    return np.where((codes >= 0) & ~listed[codes], 0.0, scores)


def lower(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return the least value of each document, float64 of shape [documents], NaN where `min` is the limit."""
    import numpy as np

    limits = np.array([parameters.thresholds.get(label, np.nan) for label in (*LABELS, "")])
    return limits[columns["detected_language"]]
