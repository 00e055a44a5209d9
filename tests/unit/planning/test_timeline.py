"""The page is one well-formed, self-contained file, with text escaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from llmctl.planning.config import PlanConfig
from llmctl.planning.hardware import find
from llmctl.planning.model import ModelShape
from llmctl.planning.plan import make_plan
from llmctl.planning.timeline import MOST_OPERATIONS, drawable, memory_svg, page, timeline_svg

SHAPE = ModelShape(16, 2048, 16, 32000)


def plan_of(**values):
    asked = {"gpus": 8, "tp": 1, "pp": 4, "micro_batch_size": 1, "global_batch_size": 32, **values}
    return make_plan(SHAPE, PlanConfig(**asked), find("a100-80g"))


def test_svg_is_well_formed_and_has_every_operation() -> None:
    plan = plan_of()
    root = ElementTree.fromstring(timeline_svg(plan.step.timeline))
    titles = [item.text for item in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 4 * 16 * 2
    assert sum(title.startswith("forward, micro-batch 3:") for title in titles) == 4
    bars = ElementTree.fromstring(memory_svg(plan.step, 80e9))
    assert len(list(bars.iter("{http://www.w3.org/2000/svg}rect"))) == 4 * 6


def test_zero_bubble_shows_weights_apart() -> None:
    text = page(plan_of(schedule="zb-h1"), "m")
    assert "backward for the weights" in text and "backward for the input" in text


def test_page_needs_nothing_else_and_escapes() -> None:
    text = page(plan_of(), "<script>alert(1)</script>")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"(src|href)=|url\(|@import", text)


def test_long_steps_are_drawn_in_part() -> None:
    plan = plan_of(global_batch_size=8192)
    timeline, drawn = drawable(plan.step)
    assert drawn < plan.step.layout.micro_batches == 4096
    assert sum(map(len, timeline.slots)) <= MOST_OPERATIONS
    assert f"{drawn} of 4096 micro-batches" in page(plan, "m")
