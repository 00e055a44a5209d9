"""Read a model's shape: MODEL.yaml, a training configuration with a `model` section, or a Hugging Face config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from llmctl.config.load import build, coerce, read_yaml
from llmctl.config.schema import fields_of
from llmctl.errors import UserError
from llmctl.planning.config import PlanConfig
from llmctl.planning.model import ModelShape

# Keys of llmctl's model section that do not change parameters, time or memory of a plan.
IGNORED_MODEL_KEYS = {"max_seq_len", "rope_theta", "rope_scaling", "norm_eps", "init_std"}
# Keys of a training configuration that a plan takes over where the command line does not say otherwise.
TRAINING_KEYS = (
    "tp",
    "pp",
    "micro_batch_size",
    "global_batch_size",
    "recompute",
    "zero_stage",
    "precision",
    "optimizer",
    "seq_len",
    "engine",
)

MODELS = Path(__file__).with_name("models")

HUGGING_FACE_KEYS = {
    "num_layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "num_heads": ("num_attention_heads", "n_head"),
    "num_kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn_hidden_size": ("intermediate_size", "n_inner"),
    "vocab_size": ("vocab_size",),
    "seq_len": ("max_position_embeddings", "n_positions", "n_ctx"),
    "tied_embeddings": ("tie_word_embeddings",),
}
GPT_STYLE = {"gpt2", "gpt_neo", "gpt_neox", "bloom", "opt", "gptj"}
LONGEST_ASSUMED_SEQUENCE = 8192


def read_model(path: Path) -> tuple[ModelShape, dict[str, Any]]:
    """Return a model's shape, and what a training configuration says beside it.

    Args:
        path: MODEL.yaml, a training configuration, config.json, a folder that holds one, or a name that ships.

    Raises:
        UserError: no such file, unknown keys, or a shape that does not fit together.
    """
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise UserError(f"{path.parent} holds no config.json", "give a YAML file with the model's shape")
    if path.suffix == ".json":
        return _hugging_face(path), {}
    shipped = MODELS / f"{path.name}.yaml"
    if not path.exists():
        if str(path) != path.name or not shipped.is_file():
            known = sorted(item.stem for item in MODELS.glob("*.yaml"))
            raise UserError(f"no such model: {path}", f"give a YAML file, or one that ships: {', '.join(known)}")
        path = shipped
    mapping = read_yaml(path)
    if isinstance(mapping.get("model"), Mapping):
        return _training_config(mapping)
    return build(ModelShape, mapping), {}


def _training_config(mapping: Mapping[str, Any]) -> tuple[ModelShape, dict[str, Any]]:
    model = {key: value for key, value in mapping["model"].items() if key not in IGNORED_MODEL_KEYS}
    if "dropout" in model:
        model["dropout"] = bool(model["dropout"])
    if not model.get("vocab_size"):
        raise UserError("`model.vocab_size` is not given", "a plan has no tokenizer to take it from: set it")
    model.setdefault("seq_len", mapping.get("seq_len", 1024))
    return build(ModelShape, model, "model."), {key: mapping[key] for key in TRAINING_KEYS if key in mapping}


def _hugging_face(path: Path) -> ModelShape:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise UserError(f"cannot read {path}: {failure.strerror}", "give a model's config.json") from None
    except ValueError as failure:
        raise UserError(f"{path} is not JSON: {failure}", "give a model's config.json") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} holds no object", "give a model's config.json")
    values: dict[str, Any] = {}
    for ours, theirs in HUGGING_FACE_KEYS.items():
        for name in theirs:
            if raw.get(name) is not None:
                values[ours] = raw[name]
                break
    kind = str(raw.get("model_type", ""))
    values["gated_mlp"] = kind not in GPT_STYLE
    values.setdefault("tied_embeddings", kind in GPT_STYLE)
    values["qkv_bias"] = kind == "qwen2"
    values["qk_norm"] = kind in ("qwen3", "olmo2")
    # The longest context a model can read is not the length it was trained on: models of 128k were trained on 8k.
    values["seq_len"] = min(int(values.get("seq_len") or 2048), LONGEST_ASSUMED_SEQUENCE)
    missing = [item.name for item in fields(ModelShape)[:4] if item.name not in values]
    if missing:
        raise UserError(f"{path} does not say `{HUGGING_FACE_KEYS[missing[0]][0]}`", "give a decoder's config.json")
    return build(ModelShape, values)


def apply_training_keys(config: PlanConfig, beside: Mapping[str, Any]) -> PlanConfig:
    """Return the plan's configuration with what a training configuration says where it has its default.

    Raises:
        UserError: a value that the planner does not know.
    """
    known = {field.name: field for field in fields_of(PlanConfig)}
    changes = {}
    for key, value in beside.items():
        field = known[key]
        if getattr(config, key) == field.default_value and value is not None:
            changes[key] = coerce(value, field, key)
    return replace(config, **changes)
