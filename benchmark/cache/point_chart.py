"""Chart of points in groups with a diagonal, as SVG for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from benchmark.line_chart import COLOURS

_SIDE: Final = 380
_LEFT: Final = 70
_TOP: Final = 40


def point_chart(title: str, axes: tuple[str, str], groups: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return SVG of the points by group. Both axes have one scale, from 0; on the dashed line both values are equal."""
    most = max((value for points in groups.values() for point in points for value in point), default=1.0) or 1.0
    bottom, right = _TOP + _SIDE, _LEFT + _SIDE

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / most * _SIDE, bottom - y / most * _SIDE

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + 200}" height="{bottom + 60}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>',
        f'<path d="M {_LEFT} {_TOP} V {bottom} H {right}" fill="none" stroke="#888"/>',
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{_TOP}" stroke="#bbb" stroke-dasharray="4 3"/>',
        f'<text x="{_LEFT + _SIDE / 2}" y="{bottom + 40}" text-anchor="middle">{escape(axes[0])}</text>',
        f'<text x="16" y="{_TOP + _SIDE / 2}" text-anchor="middle" transform="rotate(-90 16 {_TOP + _SIDE / 2})">{escape(axes[1])}</text>',
    ]
    for part in (0.0, 0.5, 1.0):
        x, y = at(part * most, part * most)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{part * most:,.0f}</text>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{part * most:,.0f}</text>')
    for row, (name, points) in enumerate(groups.items()):
        colour = COLOURS[row % len(COLOURS)]
        for x, y in (at(*point) for point in points):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.7"/>')
        parts.append(f'<circle cx="{right + 18}" cy="{_TOP + 10 + 18 * row}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{right + 28}" y="{_TOP + 14 + 18 * row}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
