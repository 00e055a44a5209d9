"""Draw charts as inline SVG: lines with axes, bars, and bars cut into parts. Colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmctl.report.markup import escape, number
from llmctl.report.scales import Scale, extent, thin_out, tick_label, ticks

NUM_COLOURS = 8
MAX_DRAWN_POINTS = 1200
MAX_HOVER_POINTS = 160
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 10, 38


@dataclass(frozen=True)
class Curve:
    """One line of a chart: (x, y) points in order of x; y may be NaN, which breaks the line."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Level:
    """A horizontal line to compare with."""

    name: str
    value: float


@dataclass(frozen=True)
class Mark:
    """A vertical line at an x, with a word on why."""

    x: float
    text: str


def line_chart(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str = "step",
    y_label: str = "",
    log_y: bool = False,
    levels: Sequence[Level] = (),
    marks: Sequence[Mark] = (),
    width: int = 720,
    height: int = 260,
) -> str:
    """Draw curves over a common axis; return a ``<figure>``, or nothing if there is no finite point.

    Args:
        curves: what to draw, each with an entry in the legend.
        title: the caption above.
        x_label, y_label: what the axes show, with the unit.
        log_y: a logarithmic y axis (values of zero and below are left out).
        levels: horizontal lines, such as the entropy of a baseline.
        marks: vertical lines, such as the step of a finding.
        width, height: of the drawing, in pixels; it scales with the page.
    """
    curves = [curve for curve in curves if any(_visible(y, log_y) for _, y in curve.points)]
    if not curves:
        return ""
    xs = [x for curve in curves for x, _ in curve.points if math.isfinite(x)]
    ys = [y for curve in curves for _, y in curve.points] + [level.value for level in levels]
    x_axis = Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, LEFT, width - RIGHT)
    low, high = extent(ys, log=log_y)
    y_axis = Scale(low, high, height - BOTTOM, TOP, log_y)
    parts = _axes(x_axis, y_axis, x_label, y_label, width, height)
    for mark in marks:
        if x_axis.low <= mark.x <= x_axis.high:
            x = x_axis(mark.x)
            parts.append(
                f'<g class="mark"><line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>'
                f"<title>{escape(mark.text)}</title></g>"
            )
    for position, level in enumerate(levels):
        y = y_axis(level.value)
        colour = (len(curves) + position) % NUM_COLOURS
        parts.append(
            f'<g class="level c{colour}"><line x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f"<title>{escape(level.name)}: {number(level.value)}</title></g>"
        )
    for position, curve in enumerate(curves):
        parts += _curve(curve, position % NUM_COLOURS, x_axis, y_axis, x_label, log_y)
    names = [curve.name for curve in curves] + [f"{level.name} ({number(level.value)})" for level in levels]
    return _figure(title, parts, width, height, names)


def _visible(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


def _axes(x_axis: Scale, y_axis: Scale, x_label: str, y_label: str, width: int, height: int) -> list[str]:
    parts = ['<g class="axes">']
    bottom = height - BOTTOM
    for value in ticks(y_axis.low, y_axis.high, log=y_axis.log):
        y = y_axis(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape(tick_label(value))}</text>')
    for value in ticks(x_axis.low, x_axis.high, most=8):
        x = x_axis(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(tick_label(value))}</text>')
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{width - RIGHT}"/>')
    parts.append(f'<text x="{width - RIGHT}" y="{height - 6}" text-anchor="end">{escape(x_label)}</text>')
    if y_label:
        middle = (TOP + bottom) / 2
        parts.append(
            f'<text transform="rotate(-90 12 {middle:.0f})" x="12" y="{middle:.0f}" '
            f'text-anchor="middle">{escape(y_label)}</text>'
        )
    parts.append("</g>")
    return parts


def _curve(curve: Curve, colour: int, x_axis: Scale, y_axis: Scale, x_label: str, log: bool) -> list[str]:
    points = thin_out(curve.points, MAX_DRAWN_POINTS)
    path, pen_down = [], False
    broken = []
    for x, y in points:
        if _visible(y, log):
            path.append(f"{'L' if pen_down else 'M'}{x_axis(x):.1f} {y_axis(y):.1f}")
            pen_down = True
        else:
            pen_down = False
            broken.append((x, y))
    shape = ' stroke-dasharray="5 3"' if curve.dashed else ""
    parts = [f'<g class="curve c{colour}"><path d="{"".join(path)}"{shape}/>']
    shown = [point for point in points if _visible(point[1], log)]
    stride = math.ceil(len(shown) / MAX_HOVER_POINTS) or 1
    visible_dots = " dot" if len(shown) <= 30 else ""
    for x, y in shown[::stride]:
        label = f"{curve.name}, {x_label} {number(x)}: {number(y)}"
        parts.append(
            f'<circle class="hover{visible_dots}" cx="{x_axis(x):.1f}" cy="{y_axis(y):.1f}" r="3">'
            f"<title>{escape(label)}</title></circle>"
        )
    for x, y in broken[:MAX_HOVER_POINTS]:
        if log and math.isfinite(y):
            continue
        label = f"{curve.name}, {x_label} {number(x)}: {'NaN' if math.isnan(y) else 'infinite'}"
        parts.append(
            f'<path class="broken" d="M{x_axis(x) - 3:.1f} {TOP}h6l-3 7z"><title>{escape(label)}</title></path>'
        )
    parts.append("</g>")
    return parts


@dataclass(frozen=True)
class Bar:
    """One bar: a label, its value, and what the hover text adds."""

    label: str
    value: float
    detail: str = ""


def bar_chart(bars: Sequence[Bar], *, title: str, unit: str = "", width: int = 720) -> str:
    """Draw horizontal bars, one a line, with the value at the end; return a ``<figure>``."""
    if not bars:
        return ""
    label_width = min(260, 12 + 7 * max(len(bar.label) for bar in bars))
    height = 22 * len(bars) + 8
    _, high = extent([bar.value for bar in bars], zero=True)
    axis = Scale(0.0, high, label_width, width - 110)
    parts = []
    for position, bar in enumerate(bars):
        y = 4 + 22 * position
        length = axis(max(0.0, bar.value)) - label_width
        value = f"{number(bar.value)} {unit}".strip()
        parts.append(
            f'<g class="bar c{position % NUM_COLOURS if len(bars) <= NUM_COLOURS else 0}">'
            f'<text x="{label_width - 6}" y="{y + 14}" text-anchor="end">{escape(_short(bar.label, 36))}</text>'
            f'<rect x="{label_width}" y="{y + 2}" width="{max(length, 0.5):.1f}" height="16"/>'
            f'<text x="{label_width + length + 5:.1f}" y="{y + 14}">{escape(value)}</text>'
            f"<title>{escape(bar.label)}: {escape(value)}{escape(' ' + bar.detail if bar.detail else '')}</title></g>"
        )
    return _figure(title, parts, width, height, [])


def parts_chart(
    rows: Sequence[tuple[str, Sequence[tuple[str, float]]]],
    *,
    title: str,
    unit: str = "",
    relative: bool = True,
    width: int = 720,
) -> str:
    """Draw bars cut into named parts: kept and removed of each stage, or what a step is made of.

    Args:
        rows: (label, [(part, value), …]) for each bar; a part has the same colour in every bar.
        title: the caption.
        unit: of the values, for the hover text.
        relative: every bar has the full width, and parts are shares of it.
        width: of the drawing.
    """
    rows = [(label, [(name, value) for name, value in parts if value > 0]) for label, parts in rows]
    rows = [(label, parts) for label, parts in rows if parts]
    if not rows:
        return ""
    names = list(dict.fromkeys(name for _, parts in rows for name, _ in parts))
    label_width = min(220, 12 + 7 * max(len(label) for label, _ in rows))
    room = width - label_width - RIGHT
    longest = max(sum(value for _, value in parts) for _, parts in rows)
    drawn = []
    for position, (label, parts) in enumerate(rows):
        y = 4 + 26 * position
        total = sum(value for _, value in parts)
        x = float(label_width)
        drawn.append(f'<text x="{label_width - 6}" y="{y + 15}" text-anchor="end">{escape(_short(label, 30))}</text>')
        for name, value in parts:
            share = value / total
            length = room * (share if relative else value / longest)
            text = f"{label}, {name}: {number(value)} {unit} ({100 * share:.1f} %)"
            inside = f'<text x="{x + 4:.1f}" y="{y + 15}" class="inside">{100 * share:.0f} %</text>'
            drawn.append(
                f'<g class="bar c{names.index(name) % NUM_COLOURS}">'
                f'<rect x="{x:.1f}" y="{y}" width="{max(length, 0.5):.1f}" height="20"/>'
                f"{inside if length > 44 else ''}<title>{escape(text)}</title></g>"
            )
            x += length
    return _figure(title, drawn, width, 26 * len(rows) + 8, names)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _figure(title: str, parts: Sequence[str], width: int, height: int, legend: Sequence[str]) -> str:
    keys = "".join(
        f'<span class="key"><span class="swatch c{position % NUM_COLOURS}"></span>{escape(name)}</span>'
        for position, name in enumerate(legend)
    )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
        + (f'<p class="legend">{keys}</p>' if keys else "")
        + "</figure>"
    )
