"""Remove documents that say of themselves that they must not be passed on: confidential, privileged, no reproduction.

A list of phrases, English and Chinese, and no model: it finds what is announced in these words and no other legal
risk. It is not a measure of legal risk; for that, train a classifier on your own labels and name it `legal_risk`
(preset `safety` has its limit). List and number are llmctl's own; give `phrases` for another list or language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import ScoreParameters

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("num_restriction_notices",)
PHRASES_COLUMN = "num_restriction_notices"
_ENGLISH = """
    attorney-client privilege | attorney client privilege | attorney work product | company confidential |
    confidential and proprietary | do not distribute | do not forward this | for internal use only |
    intended only for the addressee | intended solely for the addressee | internal use only |
    may not be reproduced in any form | may not be reproduced without | may not be republished |
    no part of this book may be | no part of this document may be | no part of this publication may be |
    not for distribution | not for public release | privileged and confidential | proprietary and confidential |
    reproduction is prohibited | reproduction is strictly prohibited | reproduction prohibited | strictly confidential |
    trade secret of | unauthorised copying | unauthorized copying | unauthorised distribution |
    unauthorized distribution | unauthorised reproduction | unauthorized reproduction
"""
_CHINESE = """
    严禁外传 | 禁止外传 | 严禁转载 | 禁止转载 | 谢绝转载 | 未经许可不得转载 | 未经授权不得转载 |
    未经许可，不得转载 | 未经授权，不得转载 | 翻印必究 | 内部资料 | 内部文件 | 仅供内部 | 商业机密 |
    商业秘密保密协议 | 绝密★ | 机密★ | 秘密★
"""
PHRASES = tuple(phrase.strip() for phrase in (_ENGLISH + "|" + _CHINESE).split("|") if phrase.strip())


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    max: Annotated[float | None, Opt("Most notices of a document that stays (llmctl's own: none).", min=0)] = 0
    phrases: Annotated[list[str], Opt("The phrases that count; case and kind of white space do not.")] = field(
        default_factory=lambda: list(PHRASES)
    )


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return columns["num_restriction_notices"] * 1.0
