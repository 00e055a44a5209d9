"""``llmctl diagnose``: what is wrong with a run, why, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmctl import console
from llmctl.cli.options import stage_command
from llmctl.config.common import RunOptions
from llmctl.diagnosis.config import DiagnoseConfig
from llmctl.errors import LimitPassed, UserError

if TYPE_CHECKING:
    from llmctl.diagnosis.stage import Diagnosis


MAX_OPERATORS = 10


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
    config: DiagnoseConfig,
    options: RunOptions,
) -> None:
    """Say what is wrong with a training run, why, and what to do about it."""
    from llmctl.diagnosis import stage

    if explain is not None:
        _explain(explain)
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
