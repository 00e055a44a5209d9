"""What `llmctl tokenize` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.config.schema import Opt
from llmctl.errors import UserError

EOS_TOKEN, PAD_TOKEN = "<|endoftext|>", "<|pad|>"
# The chat tokens are there from the start, so that fine-tuning needs no new embedding rows.
CHAT_TOKENS = ("<|im_start|>", "<|im_end|>")
NUM_BYTES = 256

# Blocks are smaller than elsewhere: encoding is slow (a few MB/s a core), and a block is what a kill costs.
BLOCK_BYTES = 32_000_000


@dataclass
class TokenizeConfig:
    """How texts become token ids."""

    vocab_size: Annotated[
        int, Opt("Tokens of a trained vocabulary, special tokens and domain terms included; exact.", min=NUM_BYTES + 4)
    ] = 32_000
    tokenizer: Annotated[
        str | None,
        Opt(
            "An existing tokenizer instead of a trained one: tokenizer.json, a Hugging Face folder, an llmctl folder "
            "or a .tiktoken file.",
            identity=False,
        ),
    ] = None
    max_train_bytes: Annotated[
        int, Opt("Text to train on at most; a seeded sample, by source in proportion.", min=1, size=True)
    ] = 1_000_000_000
    min_frequency: Annotated[int, Opt("Fewest occurrences of a pair that becomes a token.", min=1)] = 2
    split: Annotated[
        Literal["marks", "qwen2", "llama3", "gpt2"],
        Opt(
            "How text is cut into words before merging: `qwen2` (digits stand alone), `marks` (qwen2 with vowel signs "
            "and accents kept in their word), `llama3` (digits in threes), `gpt2`."
        ),
    ] = "marks"
    normalization: Annotated[
        Literal["none", "nfc"], Opt("Unicode normalisation of the text; `none` gives back every byte.")
    ] = "none"
    special_tokens: Annotated[
        list[str], Opt("Further special tokens of a trained tokenizer.", aliases=("--special-token",))
    ] = field(default_factory=list)
    allow_special: Annotated[bool, Opt("Read special tokens inside texts as such; otherwise they are plain text.")] = (
        False
    )
    eos_token: Annotated[
        str | None, Opt("The token after each document, where an existing tokenizer does not name one.")
    ] = None
    domain_terms: Annotated[
        str | None,
        Opt("A text file with one domain term a line; terms that save tokens become tokens.", identity=False),
    ] = None
    mine_domain_terms: Annotated[
        int, Opt("Find up to this many domain terms: frequent in the domain, rare elsewhere, split today.", min=0)
    ] = 0
    domain_sources: Annotated[
        list[str],
        Opt("Sources whose documents are the domain's text (`*` and `?` match any); without it, all are."),
    ] = field(default_factory=list)
    min_term_savings: Annotated[
        float, Opt("Fewest tokens that a term must save per million tokens of the domain's text.", min=0)
    ] = 20.0
    seed: Annotated[int, Opt("Seed of the samples.", min=0)] = 0
    max_invalid_share: Annotated[float, Opt("Largest share of invalid records before status 3.", min=0, max=1)] = 0.05
    read: Annotated[ReadOptions, Opt("How raw files are read.")] = field(
        default_factory=lambda: ReadOptions(block_bytes=BLOCK_BYTES)
    )

    @property
    def wants_terms(self) -> bool:
        """Tell whether domain terms are asked for."""
        return self.domain_terms is not None or self.mine_domain_terms > 0

    def validate(self) -> None:
        """Check what spans fields."""
        if self.domain_sources and not self.wants_terms:
            raise UserError(
                "`domain_sources` goes with domain terms", "give --domain-terms FILE or --mine-domain-terms N"
            )
        reserved = [EOS_TOKEN, PAD_TOKEN, *CHAT_TOKENS]
        for token in self.special_tokens:
            if not token.strip() or self.special_tokens.count(token) > 1 or token in reserved:
                raise UserError(f"`special_tokens`: {token!r} is empty or stands twice", "give each token once")
        if self.tokenizer is None:
            if self.eos_token is not None:
                raise UserError(
                    "`--eos-token` goes with `--tokenizer`", f"a trained tokenizer ends documents with {EOS_TOKEN}"
                )
            least = NUM_BYTES + len(reserved) + len(self.special_tokens)
            if self.vocab_size < least:
                raise UserError(
                    f"`vocab_size` must be at least {least}: {NUM_BYTES} bytes and {least - NUM_BYTES} special tokens",
                    f"give --vocab-size {least} or more",
                )
