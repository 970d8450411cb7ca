"""Heat map as SVG for reports. It needs no browser and no plotting library."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_WIDTH, _HEIGHT, _LABELS, _TOP = 76, 34, 220, 76


def heat_map(title: str, cells: Mapping[tuple[str, ...], float]) -> str:
    """Return `cells`, by (row, column), as SVG: the larger the number, the darker its cell."""
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    largest = max(cells.values(), default=1.0)
    width, height = _LABELS + _WIDTH * len(columns) + 10, _TOP + _HEIGHT * len(rows) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="26" font-size="15">{escape(title)}</text>',
    ]
    parts += [
        f'<text x="{_LABELS + _WIDTH * (i + 0.5)}" y="{_TOP - 10}" text-anchor="middle">{escape(column)}</text>'
        for i, column in enumerate(columns)
    ]
    for j, row in enumerate(rows):
        y = _TOP + _HEIGHT * j
        parts.append(f'<text x="{_LABELS - 10}" y="{y + _HEIGHT / 2 + 5}" text-anchor="end">{escape(row)}</text>')
        for i, column in enumerate(columns):
            value = cells.get((row, column))
            if value is None:
                continue
            share = value / largest
            x = _LABELS + _WIDTH * i
            colour = f"hsl(210, 70%, {95 - 60 * share:.0f}%)"
            ink = "white" if share > 0.6 else "black"
            parts.append(f'<rect x="{x}" y="{y}" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" fill="{colour}"/>')
            parts.append(
                f'<text x="{x + _WIDTH / 2 - 1}" y="{y + _HEIGHT / 2 + 4}" text-anchor="middle" fill="{ink}">{value:,.0f}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])
