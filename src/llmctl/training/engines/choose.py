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
    if layout.pp > 1:
        raise UserError(
            f"pipeline stages are not available yet (`pp` {layout.pp})",
            f"use --pp 1 with --tp {layout.tp} or --zero-stage 3 to spread a model over processes",
        )
    native_problem = _native_problem(config, layout)
    deepspeed_problem = _deepspeed_problem(config, layout, device)
    if config.engine == "native" and native_problem:
        raise UserError(f"the native engine cannot run this: {native_problem[0]}", native_problem[1])
    if config.engine == "deepspeed" and deepspeed_problem:
        raise UserError(f"the deepspeed engine cannot run this: {deepspeed_problem[0]}", deepspeed_problem[1])
    if config.engine != "auto":
        return config.engine, "as asked"
    if native_problem and deepspeed_problem:
        raise UserError(native_problem[0], deepspeed_problem[1])
    if deepspeed_problem:
        return "native", deepspeed_problem[0]
    if native_problem:
        return "deepspeed", native_problem[0]
    if layout.world_size == 1:
        return "native", "one process has nothing to split"
    return "deepspeed", "data parallel without tensor or pipeline parallelism"


def _native_problem(config: TrainingConfig, layout: Layout) -> tuple[str, str] | None:
    if config.zero_stage and layout.dp > 1:
        return f"ZeRO stage {config.zero_stage} is DeepSpeed's", "use --engine deepspeed, or --zero-stage 0"
    return None


def _deepspeed_problem(config: TrainingConfig, layout: Layout, device: str) -> tuple[str, str] | None:
    if layout.tp > 1:
        return "tensor parallelism is the native engine's", "use --engine native, or --tp 1"
    if config.precision == "fp64":
        return "fp64 is the native engine's", "use --engine native, or --precision fp32"
    if config.precision == "fp16" and device == "cpu":
        return "DeepSpeed has no fp16 on the CPU", "use --precision bf16, or --engine native"
    if config.optimizer == "lamb" and config.zero_stage:
        return (
            "LAMB needs whole parameters, and ZeRO splits them",
            "use --zero-stage 0, or --optimizer adamw",
        )
    return None


def make_engine(model: nn.Module, config: TrainingConfig, world: World) -> Any:
    """Build the engine of a run around a model.

    Raises:
        UserError: see `choose_engine`.
    """
    name, _ = choose_engine(config, world.layout, world.device.type)
    if name == "native":
        from llmctl.training.engines.native import NativeEngine

        return NativeEngine(model, config, world)
    from llmctl.training.engines.deepspeed import DeepSpeedEngine

    return DeepSpeedEngine(model, config, world)
