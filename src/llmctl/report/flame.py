"""Draw a flame graph (icicles: callers above, callees below) as inline SVG."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from llmctl.report.markup import escape

ROW_HEIGHT = 16
NUM_COLOURS = 8
MAX_DEPTH = 40
# Narrower frames cannot be seen, and there may be millions of them.
MIN_PIXELS = 0.6


@dataclass
class Frame:
    """One function under one chain of callers; `total` includes what it calls, in seconds."""

    name: str
    total: float = 0.0
    count: int = 0
    children: dict[str, Frame] = field(default_factory=dict)

    @property
    def own(self) -> float:
        """Return the time that no callee accounts for."""
        return max(0.0, self.total - sum(child.total for child in self.children.values()))

    def child(self, name: str) -> Frame:
        """Return the callee of this name, made if it is new."""
        found = self.children.get(name)
        if found is None:
            found = self.children[name] = Frame(name)
        return found


def flame_graph(root: Frame, *, title: str, width: int = 960) -> str:
    """Draw the frames below `root`; return a ``<figure>``, or nothing if no time was spent."""
    total = root.total or sum(child.total for child in root.children.values())
    if total <= 0:
        return ""
    scale = width / total
    parts, deepest = [], 0
    for frame, start, depth in _walk(root, 0.0, 0, scale):
        deepest = max(deepest, depth)
        length = frame.total * scale
        text = f"{frame.name}: {_seconds(frame.total)} ({100 * frame.total / total:.1f} %), {frame.count:,} calls"
        room = int(length / 6.2)
        label = ""
        if room >= 4:
            shown = frame.name if len(frame.name) <= room else frame.name[: room - 1] + "…"
            label = f'<text x="{start * scale + 3:.1f}" y="{depth * ROW_HEIGHT + 11}">{escape(shown)}</text>'
        # The same name has the same colour in every graph (Python's own hash differs between runs).
        colour = zlib.crc32(frame.name.encode("utf-8", "replace")) % NUM_COLOURS
        parts.append(
            f'<g class="bar c{colour}"><rect x="{start * scale:.2f}" y="{depth * ROW_HEIGHT}" '
            f'width="{max(length, MIN_PIXELS):.2f}" height="{ROW_HEIGHT}"/>{label}<title>{escape(text)}</title></g>'
        )
    height = (deepest + 1) * ROW_HEIGHT
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg class="flame" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'
    )


def _walk(frame: Frame, start: float, depth: int, scale: float) -> Iterator[tuple[Frame, float, int]]:
    """Yield (frame, start, depth) of what is wide enough to be seen, the largest first."""
    position = start
    for child in sorted(frame.children.values(), key=lambda item: (-item.total, item.name)):
        if child.total * scale >= MIN_PIXELS and depth < MAX_DEPTH:
            yield child, position, depth
            yield from _walk(child, position, depth + 1, scale)
        position += child.total


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
