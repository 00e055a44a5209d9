"""What `llmctl plan` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmctl.config.schema import Opt


@dataclass
class PlanConfig:
    """Devices, layout, and what a run costs. What is not given is searched for (tp, pp) or has a default."""

    gpus: Annotated[int, Opt("Devices of the run.", min=1)] = 8
    hw: Annotated[str, Opt("Accelerator, a name from the hardware table (`llmctl plan --list-hardware`).")] = "a100-80g"
    hw_file: Annotated[str | None, Opt("TOML file of your own hardware; its values come before the table's.")] = None
    # -- layout
    tp: Annotated[int, Opt("Tensor-parallel devices of a group; 0 searches.", min=0)] = 0
    pp: Annotated[int, Opt("Pipeline stages; 0 searches.", min=0)] = 0
    micro_batch_size: Annotated[int, Opt("Sequences of one micro-batch; 0 takes the fastest that fits.", min=0)] = 0
    global_batch_size: Annotated[int, Opt("Sequences of one step; 0 takes about 4 million tokens.", min=0)] = 0
    seq_len: Annotated[int, Opt("Tokens of one sequence; 0 takes the model's.", min=0)] = 0
    recompute: Annotated[
        Literal["auto", "none", "selective", "full"],
        Opt("Activations computed again: none, the attention core, whole layers; `auto` is none, or searched for."),
    ] = "auto"
    sequence_parallel: Annotated[
        bool | None, Opt("Split norms and dropout along the sequence; default: off, or searched for.")
    ] = None
    schedule: Annotated[
        Literal["auto", "1f1b", "interleaved", "zb-h1", "zb-h2", "gpipe"],
        Opt("Pipeline schedule; `auto` is 1f1b (interleaved with virtual stages), or searched for."),
    ] = "auto"
    virtual_stages: Annotated[int, Opt("Virtual stages of a device, for the interleaved schedule.", min=1)] = 1
    zero_stage: Annotated[
        int, Opt("ZeRO: 1 splits optimizer state, 2 gradients, 3 weights; -1 is 0, or searched for.", min=-1, max=3)
    ] = -1
    engine: Annotated[
        Literal["auto", "native", "deepspeed"], Opt("Refuse what this engine cannot run; `auto` refuses nothing.")
    ] = "auto"
    # -- numbers
    precision: Annotated[Literal["bf16", "fp16", "fp32"], Opt("Arithmetic of forward and backward.")] = "bf16"
    grad_precision: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"], Opt("How gradients are kept; `auto` as the weights.")
    ] = "auto"
    optimizer: Annotated[Literal["adamw", "lamb", "sgd"], Opt("Update rule, for its state.")] = "adamw"
    attention: Annotated[
        Literal["auto", "core", "flash"],
        Opt("`core` keeps scores in memory, `flash` does not; `auto` as is usual on the accelerator."),
    ] = "auto"
    overlap: Annotated[
        float, Opt("Share of the gradient communication that hides behind the backward pass.", min=0, max=1)
    ] = 0.0
    # -- the whole run
    tokens: Annotated[float, Opt("Tokens of the whole run; 0 takes 20 a parameter.", min=0)] = 0.0
    price: Annotated[float, Opt("Dollars of a device-hour on demand; -1 takes the table's.", min=-1)] = -1.0
    spot_price: Annotated[float, Opt("Dollars of a device-hour on spot; -1 takes the table's.", min=-1)] = -1.0
    interruptions_per_hour: Annotated[
        float, Opt("Share of spot nodes interrupted in an hour; -1 takes the table's.", min=-1, max=10)
    ] = -1.0
    failures_per_hour: Annotated[
        float,
        Opt(
            "Share of nodes that fail in an hour in any case; the default is Llama 3's 419 in 54 days on 2,048 nodes "
            "(Grattafiori et al. 2024, section 3.3.4).",
            min=0,
            max=10,
        ),
    ] = 1.6e-4
    restart_minutes: Annotated[float, Opt("Minutes from an interruption until training goes on.", min=0)] = 10.0
    checkpoint_gbps: Annotated[float, Opt("Bytes a second that one node writes to storage, in 10⁹.", min=0.001)] = 2.0
    pue: Annotated[float, Opt("Power of the building by power of the machines.", min=1, max=5)] = 1.2
    carbon: Annotated[float, Opt("Kilograms of CO₂ for a kilowatt-hour.", min=0, max=5)] = 0.4
    # -- the search
    top: Annotated[int, Opt("Layouts shown of a search.", min=1, max=100)] = 5
