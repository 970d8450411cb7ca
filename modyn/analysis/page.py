"""Parts of HTML reports: the page, sections with a chart, and tables."""

from __future__ import annotations

import gzip
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from modyn.analysis.charts.figure import Figure

_PLOTLY_JS: Final = Path(__file__).with_name("plotly-cartesian.min.js.gz")
"""plotly.js with the chart types that Modyn uses, from npm's plotly.js-cartesian-dist-min (docs/decisions/040)."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin: 2.2rem 0 .3rem; font-size: 1.2rem; }
p.note { color: #59636e; margin: .2rem 0 .6rem; max-width: 75ch; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.card { border: 1px solid #d1d9e0; border-radius: 8px; padding: .6rem 1rem; min-width: 8rem; }
.card b { display: block; font-size: 1.5rem; } .card span { color: #59636e; font-size: .85rem; }
table { border-collapse: collapse; font-size: .88rem; }
.wide { overflow-x: auto; }
td, th { border-bottom: 1px solid #d1d9e0; padding: .25rem .7rem; text-align: right; }
th { font-weight: 600; } td:first-child, th:first-child { text-align: left; }
pre { background: #f6f8fa; padding: 1rem; overflow: auto; font-size: .82rem; }
.error { background: #ffebe9; border: 1px solid #cf222e; border-radius: 8px; padding: .6rem 1rem; white-space: pre-wrap; }"""


def page(title: str, parts: Sequence[str]) -> str:
    """Return a complete HTML page that needs no network. Args: parts: HTML of the page's body."""
    head = f"<meta charset='utf-8'><title>{html.escape(title)}</title>"
    head += "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    head += f"<style>{_STYLE}</style><script>{gzip.decompress(_PLOTLY_JS.read_bytes()).decode()}</script>"
    body = "\n".join(parts)
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>"


def section(title: str, note: str, figure: Figure) -> str:
    """Return the HTML of a heading, a note and a chart. Args: note: sentences below the heading."""
    return f"<h2>{html.escape(title)}</h2><p class='note'>{html.escape(note)}</p>{figure.html(title)}"


def html_table(header: list[str], rows: list[list[Any]]) -> str:
    """Return the HTML of a table. Args: rows: cells of any type, which are shown as text."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
