"""Scatter plot of named points as SVG for reports. It needs no browser and no plotting library."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT = 760, 420, 70, 50, 190


class Point(NamedTuple):
    """A point, and half the height of the bar through it."""

    x: float
    y: float
    spread: float = 0.0


def scatter(title: str, axes: tuple[str, str], points: Mapping[str, Point]) -> str:
    """Return SVG of the points. Points of the Pareto front, less x and more y, are joined."""
    xs, ys = [p.x for p in points.values()], [p.y for p in points.values()]
    low, high = min(ys) - 0.01, max(ys) + 0.01

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / (max(xs) * 1.05) * _WIDTH, _TOP + (high - y) / (high - low) * _HEIGHT

    bottom = _TOP + _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + _RIGHT}" height="{bottom + 60}" font-family="sans-serif" '
        'font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="26" font-size="15">{escape(title)}</text>',
        f'<path d="M {_LEFT} {_TOP} V {bottom} H {_LEFT + _WIDTH}" fill="none" stroke="#888"/>',
        f'<text x="{_LEFT + _WIDTH / 2}" y="{bottom + 45}" text-anchor="middle">{escape(axes[0])}</text>',
        f'<text x="18" y="{_TOP + _HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 18 {_TOP + _HEIGHT / 2})">{escape(axes[1])}</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        value, number = low + share * (high - low), share * max(xs)
        parts.append(f'<text x="{_LEFT - 8}" y="{at(0, value)[1] + 4}" text-anchor="end">{100 * value:.1f}</text>')
        parts.append(f'<text x="{at(number, low)[0]}" y="{bottom + 20}" text-anchor="middle">{number:.0f}</text>')
    front = [at(p.x, p.y) for p in sorted(points.values()) if is_best(p, points)]
    parts.append(
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in front)}" fill="none" stroke="#2a7" stroke-dasharray="4 3"/>'
    )
    for name, point in points.items():
        (x, y), (_, up), (_, down) = (at(point.x, y) for y in (point.y, point.y + point.spread, point.y - point.spread))
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{up:.1f}" y2="{down:.1f}" stroke="#99b"/>')
        colour = "#2a7" if is_best(point, points) else "#447"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 7:.1f}" y="{y + 4:.1f}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def is_best(point: Point, points: Mapping[str, Point]) -> bool:
    """Return whether no other point has at most this x and at least this y, with one of them better."""
    return not any((p.x <= point.x and p.y >= point.y) and (p.x, p.y) != (point.x, point.y) for p in points.values())
