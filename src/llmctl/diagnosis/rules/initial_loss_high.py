"""The loss starts far above what a model that knows nothing has.

Signal: the loss of the first steps is well above the logarithm of the vocabulary's size, which is the loss of a guess
without knowledge; without a known vocabulary, above that of the largest ones in use.

Look-alikes: the first step of a model that has learnt nothing is a little above or below that logarithm; a loss that
is a sum over tokens instead of a mean is large throughout, and is told as that.

Cause: initial weights that are too wide (logits far from zero), a wrong scale of the output layer, or weights that
belong to another vocabulary.

Fix: initialise with a standard deviation of 0.02 (0.01 for deep models), scale the layers' outputs by 1/√(2·layers);
for loaded weights, check that the tokenizer is theirs.

Source: Radford et al. 2019 (GPT-2, §2.3: scaling by depth); Takase et al. 2023 (arXiv 2312.16903: small embeddings
and initial weights prevent spikes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity

# exp(13) is a vocabulary of 440,000; the largest in use have 262,144 (Gemma).
LARGEST_GUESS = 13.0


@dataclass
class Rule:
    """The loss starts far above what a model that knows nothing has."""

    needs: ClassVar[tuple[str, ...]] = ("loss",)

    factor: Annotated[float, Opt("The first losses are high above this many times the guess's loss.", min=1)] = 1.25

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report first losses that no ignorance explains."""
        loss = evidence.series("loss").head(3)
        if evidence.is_reinforcement or not len(loss) or loss.steps[0] > 10:
            return []
        vocabulary = evidence.number("vocab_size")
        guess = math.log(vocabulary) if vocabulary and vocabulary > 1 else LARGEST_GUESS
        first = float(np.min(loss.values))
        if first <= self.factor * guess:
            return []
        known = f"ln {vocabulary:,.0f} = {guess:.3g}" if vocabulary else f"at most {guess:.3g} for any vocabulary"
        later = evidence.series("loss").tail(0.2).median()
        if first > 20 * guess and later > 5 * guess:
            cause, fix = (
                "the loss may be a sum over tokens instead of a mean; if not, the initial weights are far too wide",
                "divide the loss by the number of tokens; else initialise with a standard deviation of 0.02",
            )
        else:
            cause, fix = (
                "initial weights are too wide, or the weights belong to another vocabulary",
                "initialise with a standard deviation of 0.02 (0.01 if deep); check that the tokenizer is the model's",
            )
        return [
            Finding(
                rule="initial_loss_high",
                severity=Severity.WARNING,
                step=int(loss.steps[0]),
                evidence=f"the first losses are {first:.4g} and more; a model that knows nothing has {known}",
                cause=cause,
                fix=fix,
                values={"first": first, "guess": guess},
            )
        ]
