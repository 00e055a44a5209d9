"""Read and write Hugging Face folders: Llama, Mistral, Qwen2 and Qwen3 (dense), weights in safetensors only.

Parameters have the names of transformers' classes, so import and export are a prefix. Pickled weights
(`pytorch_model.bin`) are refused: reading them can run code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl.artifacts.files import FileRecord, adopt_file, fsync_directory, safe_relative, write_json
from llmctl.artifacts.manifest import MANIFEST_NAME, read_manifest
from llmctl.errors import UserError
from llmctl.model.config import ModelConfig, rope_type
from llmctl.model.vocabulary import VOCABULARY_ROWS, GrownTokens, grown_shape

if TYPE_CHECKING:
    import torch

    from llmctl.model.transformer import Transformer
from llmctl.model.weights_file import write_safetensors

MODEL_FOLDER = "model"
WEIGHTS_NAME, INDEX_NAME = "model.safetensors", "model.safetensors.index.json"
CONFIG_NAME = "config.json"
PREFIX = "model."
HEAD = "lm_head.weight"
SCORE_HEAD = "score.weight"
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Files of a tokenizer, copied as they are.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
MAX_FILE_BYTES = 4 << 30


def find_model_folder(folder: Path | str) -> Path:
    """Return the Hugging Face folder that `folder` is or, for a finished llmctl run, contains.

    Raises:
        UserError: there is no model in it.
    """
    folder = Path(folder)
    if not folder.exists():
        raise UserError(f"{folder} does not exist", "give a Hugging Face folder or an llmctl run")
    if (folder / MANIFEST_NAME).is_file():
        read_manifest(folder, ("model",))
        folder = folder / MODEL_FOLDER
    elif not (folder / CONFIG_NAME).is_file() and (folder / MODEL_FOLDER / CONFIG_NAME).is_file():
        folder = folder / MODEL_FOLDER
    if not (folder / CONFIG_NAME).is_file():
        raise UserError(f"{folder} has no {CONFIG_NAME}", "give a Hugging Face folder or a finished llmctl run")
    return folder


def read_model_config(folder: Path | str) -> ModelConfig:
    """Read the shape of a checkpoint from its ``config.json``.

    Raises:
        UserError: an architecture or a variant of one that llmctl does not compute.
    """
    folder = find_model_folder(folder)
    try:
        kind = json.loads((folder / CONFIG_NAME).read_bytes()).get("model_type")
    except (ValueError, AttributeError):
        raise UserError(f"{folder / CONFIG_NAME} is not a JSON object", "download the model again") from None
    if kind not in ARCHITECTURES:
        raise UserError(
            f"{folder} holds a model of type `{kind}`", f"llmctl reads {', '.join(ARCHITECTURES)} checkpoints"
        )
    from transformers import AutoConfig

    theirs = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    rope = dict(getattr(theirs, "rope_parameters", None) or getattr(theirs, "rope_scaling", None) or {})
    theta = float(rope.pop("rope_theta", None) or getattr(theirs, "rope_theta", None) or 10000.0)
    _refuse_variants(folder, theirs, rope)
    scaling = rope if rope_type(rope) != "default" else None
    config = ModelConfig(
        vocab_size=int(theirs.vocab_size),
        num_layers=int(theirs.num_hidden_layers),
        hidden_size=int(theirs.hidden_size),
        num_heads=int(theirs.num_attention_heads),
        num_kv_heads=int(theirs.num_key_value_heads or theirs.num_attention_heads),
        head_dim=int(getattr(theirs, "head_dim", None) or 0),
        ffn_hidden_size=int(theirs.intermediate_size),
        max_seq_len=_longest(theirs),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=float(theirs.rms_norm_eps),
        tied_embeddings=bool(theirs.tie_word_embeddings),
        qk_norm=kind == "qwen3",
        qkv_bias=kind == "qwen2",
        init_std=float(theirs.initializer_range),
    )
    config.validate()
    return config


def _longest(theirs: Any) -> int:
    # Up to the sliding window, windowed attention is plain causal attention.
    window = getattr(theirs, "sliding_window", None)
    longest = int(theirs.max_position_embeddings)
    return min(longest, int(window)) if window else longest


def _refuse_variants(folder: Path, theirs: Any, rope: Mapping[str, Any]) -> None:
    problems = []
    if theirs.hidden_act not in ("silu", "swish"):
        problems.append(f"activation `{theirs.hidden_act}`")
    if getattr(theirs, "attention_bias", False):
        problems.append("biases in every attention projection")
    if getattr(theirs, "mlp_bias", False):
        problems.append("biases in the feed-forward part")
    if float(rope.get("partial_rotary_factor", getattr(theirs, "partial_rotary_factor", None) or 1.0)) != 1.0:
        problems.append("rotary positions on a part of each head")
    if problems:
        raise UserError(f"the model in {folder} has {' and '.join(problems)}", "llmctl does not compute that variant")


def weight_files(folder: Path) -> dict[str, Path]:
    """Return {tensor name: safetensors file} of a Hugging Face folder.

    Raises:
        UserError: no safetensors weights, or an index that names files outside of the folder.
    """
    from safetensors import SafetensorError, safe_open

    if (folder / INDEX_NAME).is_file():
        try:
            mapping = json.loads((folder / INDEX_NAME).read_bytes())["weight_map"]
            where = str(folder / INDEX_NAME)
            return {str(name): folder / safe_relative(str(file), where) for name, file in mapping.items()}
        except (ValueError, KeyError, AttributeError):
            raise UserError(f"{folder / INDEX_NAME} is not an index of weights", "download the model again") from None
    path = folder / WEIGHTS_NAME
    if not path.is_file():
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
            raise UserError(
                f"{folder} has pickled weights only, and reading them can run code",
                "convert them to safetensors on a machine that you can afford to lose",
            )
        raise UserError(f"{folder} has no {WEIGHTS_NAME}", "give a folder with weights in safetensors")
    try:
        with safe_open(path, framework="pt") as handle:
            return dict.fromkeys(handle.keys(), path)
    except (SafetensorError, OSError) as failure:
        raise UserError(f"cannot read {path}: {failure}", "download or export the model again") from None


def logical_name(name: str) -> str | None:
    """Return our name of a tensor in a Hugging Face checkpoint; None for one that is computed, not learned."""
    if name.endswith("rotary_emb.inv_freq"):
        return None
    return name.removeprefix(PREFIX)


def exported_name(name: str) -> str:
    """Return the name of one of our parameters in a Hugging Face checkpoint."""
    return name if name in (HEAD, SCORE_HEAD) else PREFIX + name


def load_model(
    folder: Path | str,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    grown: GrownTokens | None = None,
) -> Transformer:
    """Load a checkpoint (a Hugging Face folder or an llmctl run) as a whole `Transformer`.

    Args:
        dtype: of the parameters; None takes float32.
        grown: new tokens that the model gets.

    Raises:
        UserError: no model there, an unknown architecture, missing or surplus weights, wrong shapes.
    """
    import torch

    from llmctl.model.transformer import Transformer

    folder = find_model_folder(folder)
    model = Transformer(grown_shape(read_model_config(folder), grown), seed=None)
    load_weights(model, folder, grown)
    return model.to(device=device, dtype=dtype or torch.float32)


def load_weights(model: Transformer, folder: Path, grown: GrownTokens | None = None) -> None:
    """Fill a model, whole or a shard of one, from a Hugging Face folder.

    Args:
        grown: new tokens that the model has and the folder has not.

    Raises:
        UserError: missing or surplus weights, wrong shapes.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    from llmctl.model.layers import shard_of

    files = {ours: (name, path) for name, path in weight_files(folder).items() if (ours := logical_name(name))}
    wanted = dict(model.logical_parameters())
    missing = [name for name in wanted if name not in files]
    if missing:
        raise UserError(f"{folder} lacks the weight {exported_name(missing[0])}", "download or export the model again")
    surplus = [
        name for name in files if name not in wanted and _is_whole(model) and not (name == HEAD and _tied(model))
    ]
    if surplus:
        raise UserError(
            f"{folder} has the weight {exported_name(surplus[0])}, which its {CONFIG_NAME} does not mention",
            "llmctl does not compute that variant",
        )
    handles: dict[Path, Any] = {}
    try:
        for name, parameter in wanted.items():
            theirs, path = files[name]
            if path not in handles:
                handles[path] = safe_open(path, framework="pt")
            piece = handles[path].get_slice(theirs)
            shard = shard_of(parameter)
            if grown is not None and name in VOCABULARY_ROWS:
                with torch.no_grad():
                    copy_shard(parameter, grown.rows(piece[:], shard.shape[0]))
                continue
            if tuple(piece.get_shape()) != shard.shape:
                raise UserError(
                    f"{path} has {theirs} of shape {tuple(piece.get_shape())} instead of {shard.shape}",
                    f"its {CONFIG_NAME} belongs to another model",
                )
            with torch.no_grad():
                copy_shard(parameter, piece)
    except (SafetensorError, OSError) as failure:
        raise UserError(
            f"cannot read the weights in {folder}: {failure}", "download or export the model again"
        ) from None


def copy_shard(parameter: torch.Tensor, piece: Any) -> None:
    """Copy this process's part of a full tensor (or a safetensors slice of it) into a parameter; padding becomes 0."""
    from llmctl.model.layers import shard_of

    shard = shard_of(parameter)
    if shard.dim is None:
        parameter.copy_(piece[:])
        return
    count = max(0, min(parameter.shape[shard.dim], shard.shape[shard.dim] - shard.start))
    window = slice(shard.start, shard.start + count)
    if shard.dim == 0:
        parameter.zero_()
        parameter[:count].copy_(piece[window])
    else:
        parameter.copy_(piece[:, window])


def _is_whole(model: Transformer) -> bool:
    return model.is_first and model.is_last


def _tied(model: Transformer) -> bool:
    return model.config.tied_embeddings


def save_model(
    model: Transformer,
    folder: Path | str,
    tokenizer_folder: Path | str | None = None,
    extra_config: Mapping[str, Any] | None = None,
) -> list[FileRecord]:
    """Write a whole model as a folder that `AutoModelForCausalLM` and `AutoTokenizer` load.

    Args:
        tokenizer_folder: its tokenizer files are copied.
        extra_config: more keys for ``config.json``, such as ``eos_token_id``.

    Returns:
        The files written, with paths relative to `folder`.
    """
    weights = ((name, parameter.detach()) for name, parameter in model.logical_parameters())
    return save_weights(model.config, weights, folder, tokenizer_folder, extra_config)


def save_weights(
    config: ModelConfig,
    weights: Iterable[tuple[str, torch.Tensor]],
    folder: Path | str,
    tokenizer_folder: Path | str | None = None,
    extra_config: Mapping[str, Any] | None = None,
) -> list[FileRecord]:
    """Write full tensors (our names) as a Hugging Face folder; see `save_model`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    records, dtype = _write_weights(weights, folder)
    special = {}
    if tokenizer_folder is not None:
        records += _copy_tokenizer(Path(tokenizer_folder), folder)
        special = special_token_ids(folder)
    mapping = {**exported_config(config), "dtype": dtype, **special, **(extra_config or {})}
    records.append(write_json(folder, CONFIG_NAME, mapping))
    generation = {key: mapping[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in mapping}
    records.append(write_json(folder, "generation_config.json", generation))
    return records


def _write_weights(weights: Iterable[tuple[str, torch.Tensor]], folder: Path) -> tuple[list[FileRecord], str]:
    parts: list[list[str]] = []
    total, dtype = 0, "float32"
    for number, group in enumerate(_groups(weights)):
        tensors = {exported_name(name): tensor.contiguous().cpu() for name, tensor in group}
        dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        write_safetensors(folder / f"part-{number}.tmp-safetensors", tensors, {"format": "pt"})
        parts.append(list(tensors))
    names = [WEIGHTS_NAME]
    if len(parts) > 1:
        names = [f"model-{number + 1:05d}-of-{len(parts):05d}.safetensors" for number in range(len(parts))]
    for number, name in enumerate(names):
        (folder / f"part-{number}.tmp-safetensors").replace(folder / name)
    fsync_directory(folder)
    records = [adopt_file(folder, name) for name in names]
    if len(parts) > 1:
        index = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        records.append(write_json(folder, INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": index}))
    return records, dtype


def _groups(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    group: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in weights:
        nbytes = tensor.numel() * tensor.element_size()
        if group and size + nbytes > MAX_FILE_BYTES:
            yield group
            group, size = [], 0
        group.append((name, tensor))
        size += nbytes
    yield group


def exported_config(config: ModelConfig) -> dict[str, Any]:
    """Return ``config.json`` of a model: Qwen3 with QK-norm, Qwen2 with biases, else Llama.

    Raises:
        UserError: QK-norm together with biases, which no dense class of transformers computes.
    """
    if config.qk_norm and config.qkv_bias:
        raise UserError("a model with `qk_norm` and `qkv_bias` has no class in transformers", "switch one of them off")
    kind = "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias else "llama"
    mapping: dict[str, Any] = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.ffn_hidden_size,
        "max_position_embeddings": config.max_seq_len or 2048,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "initializer_range": config.init_std,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
    }
    if kind == "llama":
        mapping |= {"attention_bias": False, "mlp_bias": False}
    elif kind == "qwen3":
        mapping |= {"attention_bias": False, "use_sliding_window": False}
    else:
        mapping |= {"use_sliding_window": False}
    return mapping


def _copy_tokenizer(source: Path, folder: Path) -> list[FileRecord]:
    if source.resolve() == folder.resolve():
        return [adopt_file(folder, name) for name in TOKENIZER_FILES if (folder / name).is_file()]
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    if not names:
        raise UserError(f"{source} holds no tokenizer", "give a folder with tokenizer.json")
    for name in names:
        shutil.copyfile(source / name, folder / name)
    return [adopt_file(folder, name) for name in names]


def special_token_ids(folder: Path) -> dict[str, int]:
    """Return ``bos_token_id``, ``eos_token_id`` and ``pad_token_id`` of a tokenizer folder, those that exist."""
    try:
        names = json.loads((folder / "tokenizer_config.json").read_bytes())
        added = json.loads((folder / "tokenizer.json").read_bytes()).get("added_tokens", [])
    except (OSError, ValueError):
        return {}
    ids = {str(token["content"]): int(token["id"]) for token in added}
    found = {}
    for kind in ("bos", "eos", "pad"):
        token = names.get(f"{kind}_token")
        content = token.get("content") if isinstance(token, dict) else token
        if content in ids:
            found[f"{kind}_token_id"] = ids[content]
    return found
