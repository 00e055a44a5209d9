"""Choose the bands of the locality-sensitive hash, and tell what they find.

Two documents with Jaccard similarity s agree in one MinHash value with probability s, in a band of r values with
s**r, and in at least one of b bands with 1 - (1 - s**r)**b (Leskovec, Rajaraman, Ullman, "Mining of Massive
Datasets", section 3.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmctl.errors import UserError

MOST_PERMUTATIONS = 65536


@dataclass(frozen=True)
class Bands:
    """How signatures are cut into bands.

    Attributes:
        num_perm: length of the signatures.
    """

    num_bands: int
    rows_per_band: int
    num_perm: int

    def recall(self, similarity: float) -> float:
        """Return the probability that documents of this similarity become a candidate pair."""
        miss = 1.0 - similarity**self.rows_per_band
        return 1.0 - miss**self.num_bands


# Where no shingles are wanted: neither a fuzzy search nor an index for later.
NO_BANDS = Bands(0, 1, 1)


def choose_bands(threshold: float, num_perm: int, min_recall: float) -> Bands:
    """Return the bands with the fewest false candidates whose recall at the threshold is at least `min_recall`.

    A low threshold may need more permutations than asked for; then signatures are as long as it takes.

    Raises:
        UserError: the threshold is so low that signatures would be longer than anyone wants.
    """
    if threshold < 1.0:
        needed = math.ceil(math.log(1.0 - min_recall) / math.log(1.0 - threshold))
        num_perm = max(num_perm, needed)
    if num_perm > MOST_PERMUTATIONS:
        raise UserError(
            f"a threshold of {threshold:g} needs {num_perm:,} permutations for a recall of {min_recall:g}",
            "choose a higher threshold: at such a low one nearly all documents are alike",
        )
    for rows in range(num_perm, 0, -1):
        bands = Bands(num_perm // rows, rows, num_perm)
        if bands.recall(threshold) >= min_recall:
            return bands
    return Bands(num_perm, 1, num_perm)


def recall_curve(bands: Bands, threshold: float) -> list[tuple[float, float]]:
    """Return (similarity, probability of becoming a candidate) around the threshold, for printing."""
    points = {round(threshold + step / 20, 4) for step in range(-8, 5)} | {threshold}
    return [(point, bands.recall(point)) for point in sorted(points) if 0.0 < point <= 1.0]
