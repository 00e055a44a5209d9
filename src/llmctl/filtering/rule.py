"""What a filter rule is: typed parameters, the statistics it needs, and a value that is held against limits.

A file ``rules/<name>.py`` is a rule; its name is the rule's name in YAML and in ``removed/``. It has:

* a docstring: what, why, and the source of its numbers (its page in the reference);
* ``Parameters``: a dataclass derived from `RuleParameters` (or `LineParameters`), with ``min`` and/or ``max`` for
  the limits. A document whose value lies below ``min`` or above ``max`` is removed; on the limit it stays, and so
  does one whose value is NaN (nothing can be said about it);
* ``COLUMNS``: the statistics it needs, and ``value(columns, parameters)`` that gives float64 of shape [documents];
* perhaps ``lower(columns, parameters)``, for a limit that differs by document: NaN where ``min`` is the limit;
* or, for a rule that works on lines, ``limit(parameters)``: the limit of the action of the same name in
  `text.lines.ACTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from llmctl.config.schema import Opt

if TYPE_CHECKING:
    import numpy as np

UNSPACED_SHARE = 0.3  # of the letters, from which a document counts as written without spaces


@dataclass
class RuleParameters:
    """What every rule over documents can be told."""

    text: Annotated[
        Literal["original", "edited"],
        Opt("The text that the rule looks at: as it was read, or as the line rules leave it."),
    ] = "original"
    scripts: Annotated[
        Literal["all", "spaced", "unspaced"],
        Opt("The documents that the rule looks at: all, those with spaces between words, or those without (Chinese)."),
    ] = "all"


@dataclass
class ScoreParameters:
    """What rules over the scores of models can be told; models see the text as it was read."""

    text: ClassVar[str] = "original"
    scripts: Annotated[
        Literal["all", "spaced", "unspaced"],
        Opt("The documents that the rule looks at: all, those with spaces between words, or those without (Chinese)."),
    ] = "all"


@dataclass
class LineParameters:
    """The base of the parameters of rules that drop or change lines."""


def ratio(part: Any, whole: Any) -> np.ndarray:
    """Divide two columns as float64; nothing divided by nothing is 0."""
    import numpy as np

    whole = np.asarray(whole, np.float64)
    return np.divide(part, whole, out=np.zeros(whole.shape), where=whole != 0)


def is_unspaced(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Tell which documents are mostly written in scripts without spaces."""
    return (columns["unspaced_letters"] > 0) & (columns["unspaced_letters"] >= UNSPACED_SHARE * columns["letters"])


def gram_share(columns: Mapping[str, np.ndarray], column: str, min_words: int = 0) -> np.ndarray:
    """Return the share of characters that an n-gram statistic covers; 0 for documents under `min_words`."""
    import numpy as np

    share = ratio(columns[column], columns["stored_chars"])
    return np.where(columns["num_words"] >= min_words, share, 0.0)
