"""Remove documents with many words of a list of obscenities and slurs, English and Chinese.

It counts words and nothing else: no model stands behind it, polite hatred passes it, and quoted abuse does not. It is
not a measure of severe toxicity; for that, train a classifier on your own labels and name it `severe_toxicity`
(preset `safety` has its limit). List and number are llmctl's own; give `words` for another list or language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from llmctl.config.schema import Opt
from llmctl.filtering.rule import ScoreParameters, ratio

if TYPE_CHECKING:
    import numpy as np

COLUMNS = ("num_abusive_words", "num_words")
PHRASES_COLUMN = "num_abusive_words"
_ENGLISH = """
    arsehole, arseholes, asshole, assholes, bastard, bastards, bitch, bitches, bollocks, bullshit, cocksucker, cunt,
    cunts, dickhead, dickheads, dipshit, dumbass, fag, fags, faggot, faggots, fuck, fucked, fucker, fuckers, fuckin,
    fucking, fucks, jackass, motherfucker, motherfuckers, motherfucking, nigger, niggers, pussies, retard, retarded,
    retards, shit, shits, shithead, shitty, slut, sluts, tranny, twat, twats, wanker, wankers, whore, whores
"""
_CHINESE = """
    傻逼, 傻屄, 煞笔, 沙雕, 操你妈, 草泥马, 肏, 他妈的, 你妈的, 妈了个逼, 去你妈, 滚你妈, 尼玛, 贱人, 贱货, 婊子,
    荡妇, 母狗, 杂种, 狗杂种, 王八蛋, 狗日的, 狗东西, 脑残, 智障, 弱智, 白痴, 死全家, 死妈, 不要脸, 人渣, 败类, 黑鬼,
    支那, 死肥猪, 丑逼
"""
WORDS = tuple(word.strip() for word in (_ENGLISH + "," + _CHINESE).split(",") if word.strip())


@dataclass
class Parameters(ScoreParameters):
    """The limits of the rule."""

    max: Annotated[
        float | None, Opt("Most words of the list in a thousand (llmctl's own: 10, one word in a hundred).", min=0)
    ] = 10
    words: Annotated[list[str], Opt("The words and phrases that count; case does not.")] = field(
        default_factory=lambda: list(WORDS)
    )


def value(columns: Mapping[str, np.ndarray], parameters: Parameters) -> np.ndarray:
    """Return what is held against the limits, float64 of shape [documents]."""
    return 1000 * ratio(columns["num_abusive_words"], columns["num_words"])
