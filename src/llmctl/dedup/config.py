"""What counts as a duplicate, and which of several stays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.config.schema import Opt
from llmctl.errors import UserError

METHODS = ("exact", "fuzzy", "reordered", "template")
DEFAULT_METHODS = METHODS[:3]


@dataclass
class DedupConfig:
    """What counts as a duplicate, and which of several stays.

    Every method can run alone. A document is removed only for a document that stays in the output and that it was
    compared with.
    """

    method: Annotated[
        list[str],
        Opt(
            "How duplicates are found; repeatable. exact: the same text but for white space and Unicode form; fuzzy: "
            "Jaccard similarity of shingle sets; reordered: the same paragraphs in another order; template: one "
            "skeleton with varying slots, in many documents.",
            choices=METHODS,
        ),
    ] = field(default_factory=lambda: list(DEFAULT_METHODS))
    threshold: Annotated[
        float, Opt("Jaccard similarity of the shingle sets from which two documents are duplicates.", min=0, max=1)
    ] = 0.9
    reordered_threshold: Annotated[
        float,
        Opt(
            "Share of paragraphs in common (Jaccard, weighted by length) above which re-ordered documents are one.",
            min=0,
            max=1,
        ),
    ] = 0.85
    template_min_family: Annotated[
        int, Opt("Fewest documents with one skeleton that the method template takes for a family.", min=3)
    ] = 10
    template_max_slot_share: Annotated[
        float, Opt("Largest share of a document's words in slots, outside the skeleton.", min=0.05, max=0.9)
    ] = 0.5
    template_min_words: Annotated[int, Opt("Fewest words of a skeleton.", min=4, flag=False)] = 8
    template_keep: Annotated[int, Opt("Documents of a family that the method template keeps.", min=1)] = 1
    ngram_size: Annotated[int, Opt("Words of a shingle.", min=1, max=64)] = 5
    char_ngram_size: Annotated[
        int, Opt("Characters of a shingle, white space left out, in scripts written without spaces.", min=1, max=64)
    ] = 5
    char_share: Annotated[
        float,
        Opt(
            "Share of letters of scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) from which a "
            "document is shingled by characters.",
            min=0,
            max=1,
        ),
    ] = 0.05
    num_perm: Annotated[int, Opt("Permutations of a MinHash signature.", min=16, max=65536)] = 256
    min_recall: Annotated[
        float,
        Opt("Share of the pairs exactly at the threshold that the bands must bring together.", min=0.5, max=0.999999),
    ] = 0.995
    source_priority: Annotated[
        list[str], Opt("Sources whose documents stay rather than those of later or unnamed sources; repeatable.")
    ] = field(default_factory=list)
    quality_field: Annotated[
        str | None, Opt("Field of the records with a number; of two duplicates the one with more of it stays.")
    ] = None
    empty: Annotated[Literal["remove", "keep"], Opt("What becomes of documents without any character.")] = "remove"
    removed_text: Annotated[bool, Opt("Write the texts of removed documents to removed/ as well.")] = False
    keep_index: Annotated[
        bool, Opt("Keep signatures and shingle sets in index/, so that later corpora can be compared with this one.")
    ] = True
    seed: Annotated[int, Opt("Seed of the permutations.", min=0, max=2**32 - 1)] = 1
    max_bucket: Annotated[
        int,
        Opt(
            "Most documents under one band hash that are all compared with each other; in larger buckets documents "
            "are compared with those that stay.",
            min=2,
            flag=False,
        ),
    ] = 32
    max_comparisons: Annotated[
        int, Opt("Most staying documents of a large bucket that a document is compared with.", min=1, flag=False)
    ] = 1000
    memory: Annotated[int, Opt("Memory for sorting and comparing.", min=16_000_000, size=True, identity=False)] = (
        2_000_000_000
    )
    max_invalid_share: Annotated[
        float, Opt("Share of invalid records above which the exit status is 3.", min=0, max=1, identity=False)
    ] = 0.05
    read: Annotated[ReadOptions, Opt("How raw files are read.")] = field(default_factory=ReadOptions)

    def validate(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UserError: a threshold of zero, or no method.
        """
        if not self.threshold > 0:
            raise UserError("`threshold` must be above 0", "1.0 keeps everything but equal shingle sets; 0.9 is usual")
        if not self.method:
            raise UserError("`method` must name at least one method", f"known: {', '.join(METHODS)}")
        self.method = [name for name in METHODS if name in self.method]
