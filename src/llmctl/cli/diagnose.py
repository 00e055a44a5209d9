"""``llmctl diagnose``: what is wrong with a run, why, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmctl import console
from llmctl.cli.options import stage_command
from llmctl.config.common import RunOptions
from llmctl.diagnosis.config import DiagnoseConfig
from llmctl.errors import LimitPassed, UserError

if TYPE_CHECKING:
    from llmctl.diagnosis.stage import Diagnosis


MAX_OPERATORS = 10
# Longest wait for another host of a probe.
PROBE_TIMEOUT_S = 120.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diagnose")(command)


@stage_command(DiagnoseConfig, stage="diagnose")
def command(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run's folder (finished or not), trainer_state.json, TensorBoard events, or a CSV of step,loss.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OUTPUT]", help="A folder for findings.json, report.html and a manifest; none if left out."
        ),
    ] = None,
    *,
    html: Annotated[Path | None, typer.Option("--html", help="Write a self-contained page to this file.")] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option("--trace", help="A profiler trace (Chrome JSON, also .gz) of the run; repeatable."),
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with status 3 if anything was found.")] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="RULE", help="Print a rule's page and stop; `all` lists them.")
    ] = None,
    probe_network: Annotated[
        bool,
        typer.Option(
            "--probe-network",
            help="Measure the link between every two hosts and name the slow ones; started on each host as a run is.",
        ),
    ] = False,
    processes: Annotated[int, typer.Option("--processes", help="For the probe: processes on this host.")] = 0,
    nodes: Annotated[int, typer.Option("--nodes", help="For the probe: hosts.")] = 1,
    node_rank: Annotated[int, typer.Option("--node-rank", help="For the probe: number of this host, from 0.")] = 0,
    rendezvous: Annotated[str | None, typer.Option("--rendezvous", help="For the probe: HOST:PORT of host 0.")] = None,
    device: Annotated[str, typer.Option("--device", help="For the probe: auto, cpu or cuda.")] = "auto",
    expect_gbit: Annotated[
        float | None, typer.Option("--expect-gbit", help="For the probe: what a link should reach, in Gbit/s.")
    ] = None,
    config: DiagnoseConfig,
    options: RunOptions,
) -> None:
    """Say what is wrong with a training run, why, and what to do about it."""
    from llmctl.diagnosis import stage

    if explain is not None:
        _explain(explain)
        return
    if probe_network:
        job = {"processes": processes, "nodes": nodes, "node_rank": node_rank, "rendezvous": rendezvous}
        _probe({**job, "device": device, "timeout_s": PROBE_TIMEOUT_S}, expect_gbit, exit_code)
        return
    if run is None:
        raise UserError("no run was named", "llmctl diagnose RUN; `llmctl diagnose --explain all` lists the rules")
    if output is not None:
        _, diagnosis = stage.run(run, output, config, options, trace or ())
    else:
        diagnosis = stage.diagnose(run, config, trace or ())
    if html is not None:
        _check_page_path(html, run)
    if html is not None and not options.dry_run:
        stage.write_page(diagnosis, html)
    _print(diagnosis)
    for path in (html, output):
        if path is not None:
            console.info(f"would write {path}" if options.dry_run else f"written: {path}")
    if exit_code and diagnosis.findings:
        raise LimitPassed(diagnosis.verdict, "the fixes stand above; without --exit-code findings do not count")


def _probe(job: dict[str, Any], expect_gbit: float | None, exit_code: bool) -> None:
    from llmctl.config.load import build
    from llmctl.diagnosis.probe import probe_network, speed_in_words
    from llmctl.training.config import TrainingConfig

    if not job["processes"] and job["nodes"] > 1 and job["device"] != "cuda":
        job["processes"] = 1  # a host's link is measured once
    probe = probe_network(build(TrainingConfig, job), expect_gbit)
    if probe is None:
        return
    rows = [
        (
            probe.name(link.source),
            probe.name(link.target),
            speed_in_words(link.bytes_per_s),
            f"{link.latency_s * 1e6:.0f}",
            "slow" if link in probe.slow else "",
        )
        for link in sorted(probe.links, key=lambda link: link.bytes_per_s)
    ]
    console.table("links", ("from", "to", "bandwidth", "latency µs", ""), rows, to_stdout=True)
    console.result(probe.verdict, **probe.to_mapping())
    if exit_code and probe.slow:
        raise LimitPassed(probe.verdict, "without --exit-code slow links do not count")


def _check_page_path(html: Path, run: Path) -> None:
    if html.is_dir():
        raise UserError(f"{html} is a folder", f"give a file: --html {html / 'report.html'}")
    if html.exists() and run.exists() and html.resolve() == run.resolve():
        raise UserError(f"{html} is the run itself", "give another file: inputs are never changed")


def _explain(name: str) -> None:
    from llmctl.diagnosis.registry import page_of, rule_classes, summary_of

    if name == "all":
        rules = {rule: summary_of(rule) for rule in rule_classes()}
        width = max(map(len, rules))
        console.result("\n".join(f"{rule:{width}}  {line}" for rule, line in rules.items()), rules=rules)
        return
    console.result(page_of(name), rule=name, page=page_of(name))


def _print(diagnosis: Diagnosis) -> None:
    for note in diagnosis.evidence.notes:
        console.warning(note)
    findings = diagnosis.findings
    if findings:
        console.table(
            "",
            ("", "severity", "rule", "where", "evidence"),
            [(n, item.severity.value, item.rule, item.where, item.evidence) for n, item in enumerate(findings, 1)],
            to_stdout=True,
        )
    lines = []
    for position, finding in enumerate(findings, 1):
        lines += [f"{position}. {finding.rule}: {finding.cause}", f"   fix: {finding.fix}"]
    for trace in diagnosis.traces:
        console.table(
            f"{trace.path.name}: own time of operators",
            ("operator", "own s", "calls", "share of the trace"),
            [(name, own, calls, f"{own / trace.span_s:.1%}") for name, own, calls in trace.operators[:MAX_OPERATORS]],
            to_stdout=True,
        )
    lines.append(diagnosis.verdict)
    if diagnosis.not_judged:
        missing = sorted({need.partition(" or ")[0] for needs in diagnosis.not_judged.values() for need in needs})
        console.info(f"{len(diagnosis.not_judged)} rules could not judge: the run did not log {', '.join(missing)}")
    console.result("\n".join(lines), **diagnosis.to_mapping())
