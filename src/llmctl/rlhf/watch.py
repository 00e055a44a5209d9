"""Watch for a reward that rises for the wrong reason, and for a KL that should not be."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

WINDOW = 10
# Answers this much longer than at the start, while the score rises, are written for the reward.
LENGTH_GROWTH = 1.5
LARGE_KL = 30.0
NEGATIVE_KL = -0.5
MANY_ENDLESS = 0.5


class RewardWatch:
    """Looks at the history of a run and tells each problem once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def look(self, history: Sequence[Sequence[float]]) -> tuple[str, str] | None:
        """Return (problem, hint), or None.

        Args:
            history: per update the mean score, response length, KL of an answer, share without an end, and where
                there is one the mean score of a reward model that is not trained against.
        """
        if len(history) < 2 * WINDOW:
            return None
        first = [fmean(column) for column in zip(*history[:WINDOW], strict=True)]
        last = [fmean(column) for column in zip(*history[-WINDOW:], strict=True)]
        rises = last[0] > first[0]
        falls = len(first) > 4 and last[4] < first[4]
        found = {
            "length": (
                rises and last[1] > LENGTH_GROWTH * first[1],
                f"the score rises ({first[0]:.3g} → {last[0]:.3g}) while answers grow from {first[1]:.0f} to "
                f"{last[1]:.0f} tokens",
                "read samples of the answers; --objective mixed holds the length",
            ),
            "held-out": (
                rises and falls,
                f"the score rises ({first[0]:.3g} → {last[0]:.3g}) while that of the held-out reward model falls "
                f"({first[-1]:.3g} → {last[-1]:.3g})",
                "the reward is being gamed: stop earlier, or raise --kl-coef",
            ),
            "kl": (
                rises and last[2] > LARGE_KL,
                f"the policy is {last[2]:.0f} nats an answer away from where it started",
                "raise --kl-coef, or set --kl-target",
            ),
            "negative": (
                last[2] < NEGATIVE_KL,
                f"the mean KL is negative ({last[2]:.2f}): answers are not drawn from the distribution that is scored",
                "please report this",
            ),
            "endless": (
                last[3] > MANY_ENDLESS and last[3] > first[3] + 0.1,
                f"{last[3]:.0%} of the answers do not end by themselves",
                "raise --missing-eos-penalty or --max-new-tokens",
            ),
        }
        for name, (holds, problem, hint) in found.items():
            if holds and name not in self._told:
                self._told.add(name)
                return problem, hint
        return None
