"""Draw a plan: the pipeline schedule as a timeline and memory by stage, in one HTML page that needs nothing else."""

from __future__ import annotations

from html import escape

from llmctl.planning.plan import Plan
from llmctl.planning.report import summary
from llmctl.planning.schedule import Slot, Timeline, orders_of, simulate
from llmctl.planning.step import Step

MOST_OPERATIONS = 4000
WIDTH, ROW, LEFT = 1100, 22, 70
COLOURS = {"F": "#4878a8", "BW": "#c0703c", "B": "#c0703c", "W": "#7a9a4a"}
NAMES = {"F": "forward", "BW": "backward", "B": "backward for the input", "W": "backward for the weights"}
PARTS = (
    ("parameters", "#4878a8"),
    ("gradients", "#c0703c"),
    ("optimizer", "#7a9a4a"),
    ("activations", "#8a6aa8"),
    ("other", "#a89048"),
    ("reserve", "#b0b0b0"),
)
STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1180px;padding:0 1em}
body{color:#222;background:#fff}
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}td{padding:.15em 1em .15em 0;vertical-align:top}
td:first-child{color:#666;white-space:nowrap}svg{max-width:100%;height:auto}svg text{font:11px system-ui,sans-serif}
.key span{display:inline-block;margin-right:1.2em}.key i{display:inline-block;width:.9em;height:.9em;margin-right:.4em}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td:first-child{color:#999}svg text{fill:#ddd}}"""


def drawable(step: Step) -> tuple[Timeline, int]:
    """Return a timeline small enough to draw, and its micro-batches (fewer than the step's where that is large)."""
    layout = step.layout
    per_micro_batch = layout.pp * layout.virtual_stages * 3
    most = max(MOST_OPERATIONS // per_micro_batch, layout.pp)
    if layout.micro_batches <= most and step.timeline is not None:
        return step.timeline, layout.micro_batches
    count = min(layout.micro_batches, max(layout.pp, most // layout.pp * layout.pp))
    orders = orders_of(layout.schedule, layout.pp, count, layout.virtual_stages)
    return simulate(orders, step.stage_times, step.transfer_s, layout.virtual_stages), count


def timeline_svg(timeline: Timeline) -> str:
    """Return a schedule as SVG: a row for each device, numbers are micro-batches; shades are virtual stages."""
    end = max((device[-1].end for device in timeline.slots if device), default=0.0) or 1.0
    scale = (WIDTH - LEFT - 10) / end
    height = ROW * len(timeline.slots) + 34
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Pipeline schedule" '
        'xmlns="http://www.w3.org/2000/svg">'
    ]
    for device, slots in enumerate(timeline.slots):
        y = device * ROW + 4
        parts.append(f'<text x="4" y="{y + 14}">device {device}</text>')
        parts += [_slot_svg(slot, y, scale) for slot in slots]
    parts.append(_axis(end, scale, ROW * len(timeline.slots) + 8))
    parts.append("</svg>")
    return "".join(parts)


def _slot_svg(slot: Slot, y: int, scale: float) -> str:
    kind, micro_batch, chunk = slot.operation
    x, width = LEFT + slot.start * scale, max((slot.end - slot.start) * scale, 0.2)
    opacity = max(0.35, 1.0 - 0.2 * chunk)
    title = f"{NAMES[kind]}, micro-batch {micro_batch}" + (f", virtual stage {chunk}" if chunk else "")
    text = ""
    if width > 7 + 6 * len(str(micro_batch)):
        text = f'<text x="{x + width / 2:.1f}" y="{y + 13}" text-anchor="middle" style="fill:#fff">{micro_batch}</text>'
    return (
        f'<g><title>{title}: {slot.start * 1e3:.2f} to {slot.end * 1e3:.2f} ms</title><rect x="{x:.2f}" y="{y}" '
        f'width="{width:.2f}" height="{ROW - 4}" fill="{COLOURS[kind]}" fill-opacity="{opacity:.2f}" '
        f'stroke="#fff" stroke-width="0.4"/>{text}</g>'
    )


def _axis(end: float, scale: float, y: int) -> str:
    marks = []
    for index in range(6):
        seconds = end * index / 5
        x = LEFT + seconds * scale
        label = f"{seconds:.3g} s" if end >= 1 else f"{seconds * 1e3:.3g} ms"
        anchor = "end" if index == 5 else "middle"
        marks.append(f'<text x="{x:.1f}" y="{y + 14}" text-anchor="{anchor}">{label}</text>')
    return "".join(marks)


def memory_svg(step: Step, available: float) -> str:
    """Return memory by stage as SVG bars.

    Args:
        available: bytes of a device, drawn as a line.
    """
    most = max(available, *(stage.device for stage in step.memory))
    scale = (WIDTH - LEFT - 90) / most
    height = ROW * len(step.memory) + 26
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Memory by stage" '
        'xmlns="http://www.w3.org/2000/svg">'
    ]
    for index, stage in enumerate(step.memory):
        x, y = float(LEFT), index * ROW + 4
        parts.append(f'<text x="4" y="{y + 14}">stage {stage.stage}</text>')
        for name, colour in PARTS:
            size = getattr(stage, name)
            width = size * scale
            parts.append(
                f'<g><title>{name}: {size / 1e9:.2f} GB</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
                f'height="{ROW - 4}" fill="{colour}"/></g>'
            )
            x += width
        parts.append(f'<text x="{x + 5:.1f}" y="{y + 14}">{stage.device / 1e9:.1f} GB</text>')
    line = LEFT + available * scale
    bottom = ROW * len(step.memory) + 4
    parts.append(f'<line x1="{line:.1f}" x2="{line:.1f}" y1="0" y2="{bottom}" stroke="#c00" stroke-dasharray="4 3"/>')
    parts.append(
        f'<text x="{line:.1f}" y="{bottom + 14}" text-anchor="end">the device has {available / 1e9:g} GB</text></svg>'
    )
    return "".join(parts)


def page(plan: Plan, name: str) -> str:
    """Return one self-contained HTML page about a plan.

    Args:
        name: of the model; escaped, as all text is.
    """
    timeline, drawn = drawable(plan.step)
    kinds = {slot.operation.kind for device in timeline.slots for slot in device}
    rows = "".join(f"<tr><td>{escape(what)}</td><td>{escape(value)}</td></tr>" for what, value in summary(plan))
    notes = "".join(f"<li>{escape(note)}</li>" for note in plan.notes)
    total = plan.step.layout.micro_batches
    caption = f"{drawn} of {total} micro-batches; the rest repeats the middle." if drawn < total else ""
    schedule_key = _key([(NAMES[kind], COLOURS[kind]) for kind in ("F", "BW", "B", "W") if kind in kinds])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>Plan of {escape(name)}</title><style>{STYLE}</style></head><body>'
        f"<h1>Plan of {escape(name)}</h1><table>{rows}</table><ul>{notes}</ul>"
        f"<h2>Schedule: {escape(plan.step.layout.schedule)}</h2><p class=key>{schedule_key}</p>"
        f"{timeline_svg(timeline)}<p>{escape(caption)}</p>"
        f"<h2>Memory by stage</h2><p class=key>{_key(list(PARTS))}</p>"
        f"{memory_svg(plan.step, plan.job.hardware.memory_gb * 1e9)}</body></html>\n"
    )


def _key(items: list[tuple[str, str]]) -> str:
    return "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in items)
