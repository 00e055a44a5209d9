"""What `llmctl classifier train` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.config.schema import Opt


@dataclass
class ClassifierConfig:
    """How a classifier is trained and judged."""

    label_field: Annotated[str, Opt("Field of --data that holds the label.")] = "label"
    positive: Annotated[
        str | None,
        Opt(
            "Label that the score is the probability of; all others count as the rest. Default: `1` or `true`, else "
            "the rarer of two labels; with --good and --bad always `bad`."
        ),
    ] = None
    precision: Annotated[
        float, Opt("Wanted share of true finds among the documents over the threshold.", min=0.5, max=1)
    ] = 0.95
    expected_share: Annotated[
        float | None,
        Opt(
            "Share of such documents in the text that will be filtered, for probabilities and threshold; default: "
            "their share among the examples.",
            min=0.000001,
            max=0.999999,
        ),
    ] = None
    splits: Annotated[int, Opt("Splits of the cross-validation.", min=2, max=20)] = 5
    features: Annotated[
        int,
        Opt("Features that n-grams are hashed to, as a power of two: 20 is 1,048,576, a file of 4 MB.", min=10, max=24),
    ] = 20
    strength: Annotated[
        float, Opt("Inverse strength of the L2 penalty (scikit-learn's C); measured best on short texts.", min=1e-6)
    ] = 10.0
    max_documents: Annotated[
        int, Opt("Most examples of each kind that are used; of more, a sample drawn by the seed.", min=10)
    ] = 200_000
    max_invalid_share: Annotated[
        float, Opt("Share of invalid records from which the command ends with status 3.", min=0, max=1)
    ] = 0.05
    seed: Annotated[int, Opt("Seed of splits and samples.")] = 0
    read: Annotated[ReadOptions, Opt("How raw files are read.", flag=False)] = field(default_factory=ReadOptions)
