"""Choose the engine of a run, and refuse what no engine can do before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmctl.errors import UserError
from llmctl.training.config import TrainingConfig
from llmctl.training.layout import Layout

if TYPE_CHECKING:
    from torch import nn

    from llmctl.training.distributed import World


def choose_engine(config: TrainingConfig, layout: Layout, device: str) -> tuple[str, str]:
    """Return (engine, why).

    Args:
        device: ``cpu`` or ``cuda``.

    Raises:
        UserError: the combination works in no engine, or not in the one asked for; the hint names what does.
    """
    if config.compile:
        _check_compiler(device)
    native_problem = _native_problem(config, layout)
    deepspeed_problem = _deepspeed_problem(config, layout, device)
    if config.engine == "native" and native_problem:
        raise UserError(f"the native engine cannot run this: {native_problem[0]}", native_problem[1])
    if config.engine == "deepspeed" and deepspeed_problem:
        raise UserError(f"the deepspeed engine cannot run this: {deepspeed_problem[0]}", deepspeed_problem[1])
    if config.engine != "auto":
        return config.engine, "as asked"
    if native_problem and deepspeed_problem:
        split = layout.tp > 1 or layout.pp > 1
        raise UserError(native_problem[0], native_problem[1] if split else deepspeed_problem[1])
    if deepspeed_problem:
        return "native", deepspeed_problem[0]
    if native_problem:
        return "deepspeed", native_problem[0]
    if layout.world_size == 1:
        return "native", "one process has nothing to split"
    return "deepspeed", "data parallel without tensor or pipeline parallelism"


def _check_compiler(device: str) -> None:
    import os
    import shutil

    if device == "cpu" and not any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++")):
        raise UserError("`compile` needs a C++ compiler, and there is none", "install g++, or leave --compile")


def _native_problem(config: TrainingConfig, layout: Layout) -> tuple[str, str] | None:
    stage = config.zero_stage
    if stage >= 2 and (layout.tp > 1 or layout.pp > 1):
        return (
            f"ZeRO stage {stage} together with tp {layout.tp} and pp {layout.pp} is not available",
            f"use --zero-stage 1, or --tp 1 --pp 1 with --zero-stage {stage}",
        )
    if stage >= 2 and layout.dp > 1:
        return f"ZeRO stage {stage} is DeepSpeed's", "use --engine deepspeed, or --zero-stage 1"
    return None


def _deepspeed_problem(config: TrainingConfig, layout: Layout, device: str) -> tuple[str, str] | None:
    if layout.tp > 1 or layout.pp > 1:
        native = "--zero-stage 1" if config.zero_stage >= 2 else "the same layout"
        return (
            "tensor and pipeline parallelism are the native engine's",
            f"use --engine native with {native}, or --tp 1 --pp 1",
        )
    if config.precision == "fp64":
        return "fp64 is the native engine's", "use --engine native, or --precision fp32"
    if config.precision == "fp16" and device == "cpu":
        return "DeepSpeed has no fp16 on the CPU", "use --precision bf16, or --engine native"
    if config.compile and config.zero_stage == 3:
        return (
            "compiled layers cannot have their weights gathered by ZeRO stage 3",
            "use --zero-stage 2, or leave --compile",
        )
    if config.optimizer == "lamb" and config.zero_stage:
        return (
            "LAMB needs the norms of whole parameters, and DeepSpeed's ZeRO splits them",
            "use --engine native with --zero-stage 1, or --optimizer adamw",
        )
    return None


def _check_split(model: Any, layout: Layout) -> None:
    """Refuse a whole model where each process should hold a part: every process would train all of it."""
    size = getattr(getattr(model, "group", None), "size", 1)
    whole = getattr(model, "is_first", True) and getattr(model, "is_last", True)
    if size != layout.tp or (layout.pp > 1) == whole:
        raise UserError(
            f"this stage does not split its model over tp {layout.tp} × pp {layout.pp}",
            "use --tp 1 --pp 1; --zero-stage 3 spreads the weights over data-parallel processes",
        )


def make_engine(model: nn.Module, config: TrainingConfig, world: World) -> Any:
    """Build the engine of a run around a model.

    Raises:
        UserError: see `choose_engine`.
    """
    name, _ = choose_engine(config, world.layout, world.device.type)
    _check_split(model, world.layout)
    if name == "native":
        from llmctl.training.engines.native import NativeEngine

        return NativeEngine(model, config, world)
    from llmctl.training.engines.deepspeed import DeepSpeedEngine

    return DeepSpeedEngine(model, config, world)
