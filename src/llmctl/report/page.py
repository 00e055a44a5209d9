"""Put headings, tables and charts on one self-contained HTML page: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import llmctl
from llmctl.report.markup import escape, number

_LIGHT = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df", "#bf3989", "#6e7781", "#9a6700", "#0a7c86")
_DARK = ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#8b949e", "#d29922", "#39c5cf")


def _palette(colours: Sequence[str]) -> str:
    return "".join(f"--c{position}:{colour};" for position, colour in enumerate(colours))


STYLE = (
    ":root{color-scheme:light dark;--ink:#1f2328;--faint:#656d76;--line:#d0d7de;--paper:#fff;--soft:#f6f8fa;"
    "--critical:#cf222e;--warning:#9a6700;--good:#1a7f37;"
    + _palette(_LIGHT)
    + "}@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--faint:#8d96a0;--line:#30363d;--paper:#0d1117;"
    "--soft:#161b22;--critical:#f85149;--warning:#d29922;--good:#3fb950;"
    + _palette(_DARK)
    + "}}body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:62rem;background:var(--paper);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif}h1{font-size:1.6rem;margin:.2rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem;"
    "border-bottom:1px solid var(--line);padding-bottom:.25rem}p{margin:.4rem 0}.faint{color:var(--faint)}"
    "table{border-collapse:collapse;width:100%;margin:.6rem 0;font-variant-numeric:tabular-nums}"
    ".scroll{overflow-x:auto}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);"
    "vertical-align:top}th{color:var(--faint);font-weight:600}td.number,th.number{text-align:right;white-space:nowrap}"
    "figure{margin:1rem 0;padding:.6rem .8rem;border:1px solid var(--line);border-radius:6px}"
    "figcaption{font-weight:600;margin-bottom:.3rem}svg{display:block;width:100%;height:auto;overflow:visible}"
    "svg text{fill:var(--faint);font:11px system-ui,sans-serif}.axes line,.axes path{stroke:var(--faint);fill:none}"
    ".axes .grid{stroke:var(--line)}.curve>path{fill:none;stroke:var(--k);stroke-width:1.6}"
    ".curve .hover{fill:var(--k);opacity:0}.curve .dot{opacity:1}.curve .hover:hover{opacity:1}"
    ".curve>path.broken{fill:var(--critical);stroke:none}"
    ".level line{stroke:var(--k);stroke-dasharray:7 4;stroke-width:1.4}.mark line{stroke:var(--critical);"
    "stroke-dasharray:2 3;stroke-width:1.4}.bar rect{fill:var(--k)}.bar text{fill:var(--ink)}"
    ".bar text.inside{fill:#fff}.flame rect{stroke:var(--paper);stroke-width:.5}.flame text{fill:#fff;font-size:10px}"
    ".legend{font-size:.85rem;color:var(--faint)}.key{margin-right:1.2rem;white-space:nowrap}"
    ".swatch{display:inline-block;width:.8em;height:.8em;border-radius:2px;background:var(--k);margin-right:.35em}"
    ".finding{border-left:4px solid var(--warning);background:var(--soft);padding:.5rem .9rem;margin:.7rem 0}"
    ".finding.critical{border-color:var(--critical)}.finding h3{margin:0;font-size:1rem}"
    ".tag{font-size:.8rem;font-weight:600;text-transform:uppercase;color:var(--warning)}"
    ".critical .tag{color:var(--critical)}.healthy{border-color:var(--good)}"
    "dl{margin:.3rem 0;display:grid;grid-template-columns:max-content 1fr;gap:.1rem .8rem}"
    "dt{color:var(--faint)}dd{margin:0}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--soft);padding:.5rem .7rem;margin:.2rem 0;"
    "border-radius:6px;font:13px/1.45 ui-monospace,monospace}"
    + "".join(f".c{position}{{--k:var(--c{position})}}" for position in range(len(_LIGHT)))
)

# No script may run, nothing may be loaded: text of documents stands on these pages.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Page:
    """A page that grows from top to bottom. All text given to it is escaped; `add` alone takes markup."""

    def __init__(self, title: str, lead: str = "") -> None:
        self.title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]
        if lead:
            self.paragraph(lead, faint=True)

    def add(self, markup: str) -> None:
        """Add markup made by this package's charts; empty markup is nothing."""
        if markup:
            self._parts.append(markup)

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str, *, faint: bool = False) -> None:
        """Add a paragraph of plain text."""
        self._parts.append('<p class="faint">' + escape(text) + "</p>" if faint else f"<p>{escape(text)}</p>")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add a table; columns of numbers are right-aligned."""
        if not rows:
            return
        numeric = [
            all(row[place] is None or isinstance(row[place], (int, float)) for row in rows)
            for place in range(len(columns))
        ]

        def cell(tag: str, place: int, value: Any) -> str:
            text = number(value) if isinstance(value, (int, float)) or value is None else value
            kind = ' class="number"' if numeric[place] else ""
            return f"<{tag}{kind}>{escape(text)}</{tag}>"

        head = "".join(cell("th", place, name) for place, name in enumerate(columns))
        body = "".join(
            "<tr>" + "".join(cell("td", place, value) for place, value in enumerate(row)) + "</tr>" for row in rows
        )
        self._parts.append(
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def preformatted(self, text: str) -> None:
        """Add text whose line breaks count."""
        self._parts.append(f"<pre>{escape(text)}</pre>")

    def finding(self, finding: Mapping[str, Any]) -> None:
        """Add a finding of ``llmctl diagnose`` (as it stands in its JSON)."""
        severity = str(finding.get("severity", "warning"))
        step = finding.get("step")
        places = [f"step {step:,}"] if isinstance(step, int) else []
        places += [
            f"{name} {finding[name]}" for name in ("rank", "layer", "module", "link") if finding.get(name) is not None
        ]
        rows = "".join(
            f"<dt>{name}</dt><dd>{escape(finding[name])}</dd>"
            for name in ("evidence", "cause", "fix")
            if finding.get(name)
        )
        kind = "critical" if severity == "critical" else "warning"
        self._parts.append(
            f'<div class="finding {kind}"><h3><span class="tag">{escape(severity)}</span> '
            f'{escape(finding.get("rule", "?"))} <span class="faint">{escape(", ".join(places))}</span></h3>'
            f"<dl>{rows}</dl></div>"
        )

    def healthy(self, text: str) -> None:
        """Say that nothing was found."""
        self._parts.append(f'<div class="finding healthy">{escape(text)}</div>')

    def render(self) -> str:
        """Return the page, well-formed as HTML and as XML."""
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head>\n<body>\n"
            + "\n".join(self._parts)
            + f'\n<p class="faint">llmctl {escape(llmctl.__version__)}</p>\n</body></html>\n'
        )
