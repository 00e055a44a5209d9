"""What `llmctl filter` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.config.common import RunOptions
from llmctl.config.schema import Opt
from llmctl.filtering.clusters.config import ClusterConfig
from llmctl.filtering.templates.config import TemplateConfig

DEFAULT_PRESET = "general"


@dataclass
class FilterConfig:
    """Which documents stay, and what becomes of the others."""

    preset: Annotated[
        list[str],
        Opt(
            "Set of rules with published numbers; repeatable, a later one wins where both set the same limit. "
            "`none` starts from nothing."
        ),
    ] = field(default_factory=lambda: [DEFAULT_PRESET])
    rules: Annotated[
        dict[str, Any],
        Opt("Changes to the presets: rule → its parameters, or `off`, or `on` for a rule with its own numbers."),
    ] = field(default_factory=dict)
    sources: Annotated[
        dict[str, Any],
        Opt(
            "Changes for single sources: source (or a pattern such as `social_*`) → rule → its parameters or `off`; "
            "the key `preset` replaces the presets for that source. The first that fits is taken."
        ),
    ] = field(default_factory=dict)
    languages: Annotated[
        list[str],
        Opt(
            "Languages that stay, such as `en,zh`, as the rule `language` finds them; thresholds by language or source "
            "are set with `rules.language` and `sources`."
        ),
    ] = field(default_factory=list)
    detect_language: Annotated[
        Literal["missing", "all", "off"],
        Opt(
            "Records whose language is identified: those that name none, or all. What is sure becomes the record's "
            "language where it names none. The rule `language` looks at all."
        ),
    ] = "missing"
    pii: Annotated[
        Literal["off", "report", "mask", "drop"],
        Opt(
            "Sensitive entities (e-mail, cards, numbers of the person, keys, …): count them, replace each by its type "
            "such as `<EMAIL>`, or remove documents with any. The rule `sensitive_entities` sets it by source."
        ),
    ] = "off"
    pii_types: Annotated[
        list[str],
        Opt(
            "What `--pii` looks for: types, families, `all`, `default` (all but those of low confidence), `high`, "
            "`medium`, `low`; `-NAME` takes one away. Separated by commas."
        ),
    ] = field(default_factory=list)
    pii_consistent: Annotated[
        bool,
        Opt("With `--pii mask`, number the placeholders so that equal values of a document stay equal: `<EMAIL_1>`."),
    ] = False
    templates: Annotated[
        Literal["off", "report", "drop"],
        Opt(
            "Look for template content (documents with one skeleton and varying slots): report the families, or keep "
            "only the first of each. `template` says what a family is, the rule `template` how many stay."
        ),
    ] = "off"
    template: Annotated[TemplateConfig, Opt("What a family of template content is.", flag=False)] = field(
        default_factory=TemplateConfig
    )
    clusters: Annotated[
        bool,
        Opt(
            "Group the documents by density into kinds, and tell the size, terms and usable share of each cluster, "
            "without removing any."
        ),
    ] = False
    drop_clusters: Annotated[
        list[str], Opt("Clusters to remove, by the numbers that `--clusters` prints, such as `3,7`.")
    ] = field(default_factory=list)
    min_cluster_usable: Annotated[
        float | None,
        Opt("Drop clusters with a lower usable share in the output that --reuse-scores names.", min=0, max=1),
    ] = None
    cluster: Annotated[ClusterConfig, Opt("How documents are grouped by density.", flag=False)] = field(
        default_factory=ClusterConfig
    )
    attributes: Annotated[
        bool, Opt("Write every computed statistic to attributes/, so that other limits can be tried without the text.")
    ] = True
    keep_text_of_removed: Annotated[bool, Opt("Write the text of removed documents to removed/ too.")] = True
    max_invalid_share: Annotated[
        float, Opt("Share of invalid records from which the command ends with status 3.", min=0, max=1)
    ] = 0.05
    seed: Annotated[int, Opt("Seed; no rule draws random numbers so far, the output does not depend on it.")] = 0
    read: Annotated[ReadOptions, Opt("How raw files are read.", flag=False)] = field(default_factory=ReadOptions)

    def validate(self) -> None:
        """Check presets, rules and their parameters.

        Raises:
            UserError: an unknown preset, rule or parameter, or a value of the wrong type.
        """
        from llmctl.filtering.policy import resolve_policies

        resolve_policies(self)


@dataclass
class FilterOptions(RunOptions):
    """How to run the filter; nothing here changes the bytes of the output."""

    reuse_scores: Annotated[
        str | None,
        Opt(
            "An earlier output of filter from the same SOURCE: its attributes/ are used where the input is unchanged, "
            "so that other limits are tried without measuring the text again."
        ),
    ] = None
