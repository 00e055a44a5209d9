"""Judge a run by every rule, and write what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmctl.artifacts.files import atomic_file, write_file
from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.output import open_output
from llmctl.config.common import RunOptions
from llmctl.diagnosis.breakdown import step_breakdown
from llmctl.diagnosis.config import DiagnoseConfig
from llmctl.diagnosis.evidence import MIN_STEPS, Evidence
from llmctl.diagnosis.findings import Finding, worst_first
from llmctl.diagnosis.readers.load import load_evidence
from llmctl.diagnosis.registry import build_rule, lacking, rule_classes
from llmctl.diagnosis.traces import Trace, read_trace
from llmctl.errors import unknown_name

FINDINGS_NAME = "findings.json"
PAGE_NAME = "report.html"


@dataclass
class Diagnosis:
    """What was found in a run.

    Attributes:
        evidence: what was looked at.
        findings: worst first.
        traces: profiler traces of the run, if any were given.
        judged: the rules that had what they need.
        not_judged: {rule: what the run would have had to log}.
    """

    evidence: Evidence
    findings: list[Finding]
    traces: list[Trace] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)
    not_judged: dict[str, list[str]] = field(default_factory=dict)

    @property
    def enough(self) -> bool:
        """Tell whether the run is long enough to judge trends."""
        return self.evidence.num_steps >= MIN_STEPS

    @property
    def verdict(self) -> str:
        """Return the result in a sentence."""
        steps = self.evidence.num_steps
        if self.findings:
            critical = sum(finding.severity.value == "critical" for finding in self.findings)
            count = f"{len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}"
            return f"{count} in {steps:,} logged steps" + (f", {critical} critical" if critical else "")
        if not self.enough:
            return (
                f"{steps} logged steps are too few to judge trends ({MIN_STEPS} are needed); "
                "no fault that shows at once was found"
            )
        return f"healthy: {len(self.judged)} rules found nothing in {steps:,} logged steps"

    def to_mapping(self) -> dict[str, Any]:
        """Return the diagnosis as it stands in ``--json``."""
        evidence = self.evidence
        return {
            "run": str(evidence.path),
            "origin": evidence.origin,
            "stage": evidence.stage,
            "finished": evidence.finished,
            "num_steps": evidence.num_steps,
            "last_step": evidence.metrics.last_step,
            "healthy": not self.findings and self.enough,
            "verdict": self.verdict,
            "findings": [finding.to_mapping() for finding in self.findings],
            "judged": self.judged,
            "not_judged": self.not_judged,
            "notes": evidence.notes,
            "restarts": evidence.restarts,
            "breakdown": [
                {"part": part.name, "seconds": part.seconds, "share": part.share} for part in step_breakdown(evidence)
            ],
            "traces": [trace.to_mapping() for trace in self.traces],
        }


def diagnose(run: Path, config: DiagnoseConfig, traces: Sequence[Path] = ()) -> Diagnosis:
    """Judge a run.

    Args:
        run: a run's folder, or one of the logs that `load_evidence` knows.
        config: which rules, with which limits.
        traces: profiler traces of the run.

    Raises:
        UserError: nothing that can be judged, or an unknown rule or threshold.
    """
    known = rule_classes()
    for name in [*config.rules, *config.thresholds]:
        if name not in known:
            raise unknown_name("diagnosis rule", name, known)
    names = [name for name in known if not config.rules or name in config.rules]
    rules = {name: build_rule(name, config.thresholds.get(name)) for name in names}
    diagnosis = Diagnosis(load_evidence(run), [], [read_trace(path) for path in traces])
    found: list[Finding] = []
    for name, rule in rules.items():
        missing = lacking(rule, diagnosis.evidence)
        if missing:
            diagnosis.not_judged[name] = missing
            continue
        diagnosis.judged.append(name)
        found += rule.check(diagnosis.evidence)
    diagnosis.findings = worst_first(found)
    return diagnosis


def write_page(diagnosis: Diagnosis, path: Path) -> None:
    """Write the page of a diagnosis atomically."""
    from llmctl.diagnosis.page import diagnosis_page

    with atomic_file(path) as out:
        out.write(diagnosis_page(diagnosis).encode("utf-8"))


def run(
    source: Path, output: Path, config: DiagnoseConfig, options: RunOptions, traces: Sequence[Path] = ()
) -> tuple[Manifest | None, Diagnosis]:
    """Judge a finished run and write the result as an artifact of kind `report`.

    Returns:
        The manifest (None for a dry run) and the diagnosis.

    Raises:
        UserError: nothing to judge, or the output cannot be claimed.
    """
    diagnosis = diagnose(source, config, traces)
    opened = open_input(source, role="run", payload="metrics")
    with open_output(
        output, kind="report", stage="diagnose", config=config, inputs=[opened], options=options
    ) as claimed:
        if claimed.finished is not None or options.dry_run:
            return claimed.finished, diagnosis
        result = diagnosis.to_mapping()
        del result["run"]  # a path of this machine
        records = [claimed.write_json(FINDINGS_NAME, _plain(result))]
        from llmctl.diagnosis.page import diagnosis_page

        records.append(write_file(claimed.root, PAGE_NAME, diagnosis_page(diagnosis).encode("utf-8")))
        statistics = {
            "num_findings": len(diagnosis.findings),
            "num_steps": diagnosis.evidence.num_steps,
            "verdict": diagnosis.verdict,
            "findings": [_plain(finding.to_mapping()) for finding in diagnosis.findings],
        }
        return claimed.finish(records, statistics), diagnosis


def _plain(value: Any) -> Any:
    """Return a value that strict JSON can hold: what is not finite becomes null."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
