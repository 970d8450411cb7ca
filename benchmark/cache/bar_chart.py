"""Values by name as bars next to each other, with a goal as a line: SVG, which a report can show."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Final

from benchmark.line_chart import COLOURS

_WIDTH: Final = 420
_LEFT: Final = 220
_ROW: Final = 24
_TOP: Final = 40


def bar_chart(title: str, values: Mapping[str, float], goal: float) -> str:
    """Return SVG with a bar from 0 for each value, and a dashed line at the goal."""
    most, bottom = max([*values.values(), goal]), _TOP + _ROW * len(values)

    def at(value: float) -> float:
        return value / most * _WIDTH

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 70}" height="{bottom + 30}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="22" font-size="14">{escape(title)}</text>',
    ]
    for row, (name, value) in enumerate(values.items()):
        top = _TOP + _ROW * row
        parts += [
            f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{top + 3}" width="{at(value):.1f}" height="{_ROW - 6}" fill="{COLOURS[0]}" fill-opacity="0.7"/>',
            f'<text x="{_LEFT + at(value) + 6:.1f}" y="{top + 15}">{value:.2f}</text>',
        ]
    x = _LEFT + at(goal)
    parts += [
        f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#555" stroke-dasharray="4 3"/>',
        f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{goal:g}</text>',
    ]
    return "\n".join([*parts, "</svg>", ""])
