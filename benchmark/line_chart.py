"""Line chart as SVG for pages and reports. It needs no browser and no plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

COLOURS: Final = ("#447", "#c52", "#2a7", "#a3a", "#975", "#089", "#666", "#b80")
_WIDTH, _LEFT, _TOP, _RIGHT = 560, 60, 36, 250

Line = Sequence[tuple[float, float]]


def line_chart(
    title: str,
    axes: tuple[str, str],
    lines: Mapping[str, Line],
    *,
    marks: Mapping[str, Sequence[float]] | None = None,
    height: int = 220,
) -> str:
    """Return the lines as SVG, each through its points in order. Args: marks: name → positions on the x axis that get a vertical line."""
    marks = marks or {}
    points = [point for line in lines.values() for point in line]
    xs = [x for x, _ in points] + [x for places in marks.values() for x in places]
    ys = [y for _, y in points]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(0.0, *ys), max(ys)

    def at(x: float, y: float) -> str:
        across = _LEFT + (x - low_x) / ((high_x - low_x) or 1) * _WIDTH
        return f"{across:.1f},{_TOP + (high_y - y) / ((high_y - low_y) or 1) * height:.1f}"

    bottom = _TOP + height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + _RIGHT}" height="{bottom + 50}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="{_LEFT + _WIDTH / 2}" y="{bottom + 38}" text-anchor="middle">{escape(axes[0])}</text>',
        f'<text x="14" y="{_TOP + height / 2}" text-anchor="middle" transform="rotate(-90 14 {_TOP + height / 2})">{escape(axes[1])}</text>',
    ]
    colours = iter(COLOURS * 3)
    names: list[tuple[str, str]] = []
    for name, places in marks.items():
        names.append((name, colour := next(colours)))
        ends = [(at(x, low_y), at(x, high_y)) for x in places]
        parts += [f'<polyline points="{down} {up}" stroke="{colour}" stroke-dasharray="3 3"/>' for down, up in ends]
    for name, line in lines.items():
        names.append((name, colour := next(colours)))
        parts.append(
            f'<polyline points="{" ".join(at(x, y) for x, y in line)}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
    for share in (0, 0.5, 1):
        x, y = low_x + share * (high_x - low_x), low_y + share * (high_y - low_y)
        across, down = at(x, low_y).split(",")[0], at(low_x, y).split(",")[1]
        parts.append(f'<text x="{across}" y="{bottom + 18}" text-anchor="middle">{x:.4g}</text>')
        parts.append(f'<text x="{_LEFT - 6}" y="{down}" text-anchor="end">{y:.2g}</text>')
    parts.append(f'<path d="M {_LEFT} {_TOP} V {bottom} H {_LEFT + _WIDTH}" fill="none" stroke="#888"/>')
    for row, (name, colour) in enumerate(names):
        y = _TOP + 14 + 18 * row
        parts.append(f'<line x1="{_LEFT + _WIDTH + 12}" x2="{_LEFT + _WIDTH + 32}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}"/>')
        parts.append(f'<text x="{_LEFT + _WIDTH + 38}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
