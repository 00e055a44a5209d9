"""The models that a filter run was given on the command line: opened, described, and checked against the policy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl import console
from llmctl.errors import UserError
from llmctl.filtering.rules import CLASSIFIER_PREFIX

if TYPE_CHECKING:
    from llmctl.artifacts.inputs import Input
    from llmctl.filtering.policy import Policy

PERPLEXITY_RULES = ("perplexity", "perplexity_rank", "machine_text")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class ModelFolder:
    """One model: the name it goes by, where it lies, and the fingerprint of what lies there."""

    name: str
    root: str
    fingerprint: str


@dataclass(frozen=True)
class Models:
    """The models of a run."""

    classifiers: tuple[ModelFolder, ...] = ()
    perplexity: ModelFolder | None = None

    @property
    def classifier_names(self) -> tuple[str, ...]:
        """Return the names of the rules of the classifiers."""
        return tuple(f"{CLASSIFIER_PREFIX}{folder.name}" for folder in self.classifiers)

    def defaults(self) -> dict[str, dict[str, Any]]:
        """Return the rules that the classifiers bring: their own thresholds."""
        from llmctl.filtering.classifiers.model import read_classifier

        rules: dict[str, dict[str, Any]] = {}
        for folder in self.classifiers:
            threshold = read_classifier(folder.root, folder.fingerprint).about.threshold
            rules[f"{CLASSIFIER_PREFIX}{folder.name}"] = {} if threshold is None else {"max": threshold}
        return rules


def open_models(classifiers: Sequence[str], perplexity: Path | None = None) -> tuple[Models, list[Input]]:
    """Open what was named on the command line.

    Args:
        classifiers: ``NAME=FOLDER``.
        perplexity: an n-gram model, or a transformer.

    Returns:
        The models, and the inputs of the stage that they are.

    Raises:
        UserError: a name that cannot be one, given twice, or a folder that holds no such model.
    """
    from llmctl.filtering.classifiers.model import open_classifier, read_classifier

    inputs: list[Input] = []
    folders: list[ModelFolder] = []
    for item in classifiers:
        name, separator, path = item.partition("=")
        if not separator or not path or not _NAME.fullmatch(name):
            raise UserError(f"--classifier {item} is not NAME=FOLDER", "for example --classifier spam=models/spam")
        if name in {folder.name for folder in folders}:
            raise UserError(f"two classifiers are named `{name}`", "give each a name of its own")
        source = open_classifier(name, Path(path))
        folders.append(_folder(name, source))
        inputs.append(source)
        read_classifier(folders[-1].root, folders[-1].fingerprint)
    order = sorted(range(len(folders)), key=lambda number: folders[number].name)
    models = Models(tuple(folders[number] for number in order))
    inputs = [inputs[number] for number in order]
    if perplexity is not None:
        source, folder = _open_perplexity(perplexity)
        models = replace(models, perplexity=folder)
        inputs.append(source)
    return models, inputs


def _open_perplexity(path: Path) -> tuple[Input, ModelFolder]:
    """Open the model, and read it once, so that a damaged one is told before any work."""
    from llmctl.filtering.perplexity.model import is_ngram_model, open_model, read_model

    source = open_model(path)
    fingerprint = source.manifest.fingerprint if source.manifest is not None else source.describe()["fingerprint"]
    folder = ModelFolder("perplexity", str(source.root), fingerprint)
    if is_ngram_model(folder.root):
        read_model(folder.root, folder.fingerprint)
    else:
        from llmctl.filtering.perplexity.checkpoint import read_checkpoint

        read_checkpoint(folder.root, folder.fingerprint)
    return source, folder


def _folder(name: str, source: Input) -> ModelFolder:
    assert source.manifest is not None
    return ModelFolder(name, str(source.root), source.manifest.fingerprint)


def check_models(models: Models, policies: Sequence[Policy], presets: Mapping[str, Any]) -> None:
    """Refuse a policy that names a classifier that is not there, or one without any limit.

    Args:
        models: those given.
        policies: as resolved with them.
        presets: the rules of the presets; what they ask of classifiers that are not given does not apply, and that is
            said.

    Raises:
        UserError: names the classifier or the rule.
    """
    known = models.classifier_names
    wanted = [name for policy in policies for name in PERPLEXITY_RULES if name in policy.rules]
    if wanted and models.perplexity is None:
        raise UserError(
            f"the rule `{wanted[0]}` needs a model that gives a perplexity, and none is given",
            "--perplexity-model FOLDER; `llmctl perplexity train` makes one from reference text",
        )
    for policy in policies:
        for name, parameters in policy.rules.items():
            if not name.startswith(CLASSIFIER_PREFIX):
                continue
            label = name.removeprefix(CLASSIFIER_PREFIX)
            if name not in known:
                raise UserError(
                    f"the policy has limits for a classifier `{label}`, and none of that name is given",
                    f"--classifier {label}=FOLDER; `llmctl classifier train` makes one",
                )
            if parameters.min is None and parameters.max is None:
                raise UserError(
                    f"the classifier `{label}` has no threshold of its own: it did not reach the wanted precision",
                    f"set one: --set rules.classifier.{label}.max=0.5",
                )
    missing = [name for name in presets if name.startswith(CLASSIFIER_PREFIX) and name not in known]
    if missing:
        limits = ", ".join(f"{name.removeprefix(CLASSIFIER_PREFIX)} > {presets[name].get('max')}" for name in missing)
        console.warning(
            f"not checked, as no such classifier is given: {limits}",
            "train one on your own labels (`llmctl classifier train`) and name it so: --classifier NAME=FOLDER",
        )
