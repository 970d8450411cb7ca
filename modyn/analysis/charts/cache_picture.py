"""SVG picture of the throughput of all splits of a cache, as a triangle. Needs neither pandas nor another library for charts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Final

import numpy as np

from modyn.cache.plan.performance_model import SPLITS, Split, SplitPredictions

LEAST_RANGE: Final = 0.95
"""The darkest colour stands for at most this share of the best throughput. So splits of nearly equal throughput have similar colours."""
_COLOURS: Final = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)])
"""Colours at equal steps from the lowest throughput (dark) to the highest (bright). The colour map is viridis, which the colour-blind can read."""
_SHADES: Final = 32
_SIDE, _LEFT, _TOP, _DOT = 560, 90, 60, 7.5
"""In pixels: side length of the triangle, its distance from the left and from the top, and the diameter of a split's dot."""
_HIGH: Final = _SIDE * math.sqrt(3) / 2
_MARKS: Final = ("#d9822b", "#1f6feb", "#6e7781")


def splits_svg(title: str, predictions: SplitPredictions, marked: Mapping[str, Split] | None = None) -> str:
    """Draw the throughput of all splits, and mark the best one. Args: marked: further splits to mark, by name, such as the present split."""
    values, best = predictions.samples_per_s, predictions.best_samples_per_s
    least = min(float(values.min()), LEAST_RANGE * best)
    shades = np.minimum((values - least) / (best - least) * _SHADES, _SHADES - 1).astype(int)
    places = _places(SPLITS)
    width, base = _SIDE + 2 * _LEFT, _TOP + round(_HIGH)
    shown = {"best": predictions.best, **(marked or {})}
    height = base + 60 + 20 * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="20" y="24" font-size="15">{escape(title)}</text>',
        f'<g fill="none" stroke-linecap="round" stroke-width="{_DOT}">',
    ]
    for shade in np.unique(shades).tolist():
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places[shades == shade].tolist())
        parts.append(f'<path stroke="{_colour(shade / (_SHADES - 1))}" d="{dots}"/>')
    parts.append("</g>")
    corners = {"augmented": (0, 0, 100), "encoded": (100, 0, 0), "decoded": (0, 100, 0)}
    for form, corner in corners.items():
        x, y = _places(np.array([corner]))[0].tolist()
        down = -14 if form == "augmented" else 26
        parts.append(f'<text x="{x:.0f}" y="{y + down:.0f}" text-anchor="middle">100 % {form}</text>')
    for row, (name, split) in enumerate(shown.items()):
        x, y = _places(np.array([(split.encoded, split.decoded, split.augmented)]))[0].tolist()
        colour, below = _MARKS[min(row, len(_MARKS) - 1)], base + 60 + 20 * row
        text = f"{name}: {split}, {predictions.of(split):,.0f} samples/s"
        for at_x, at_y in ((x, y), (30, below)):
            parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="6" fill="{colour}" stroke="white" stroke-width="1.5"/>')
        parts.append(f'<text x="45" y="{below + 4}">{escape(text)}</text>')
    for shade in range(_SHADES):
        y = _TOP + 160 - 5 * shade
        parts.append(f'<rect x="{width - 150}" y="{y}" width="16" height="5.5" fill="{_colour(shade / (_SHADES - 1))}"/>')
    for value, y in ((best, _TOP + 12), (least, _TOP + 168)):
        parts.append(f'<text x="{width - 126}" y="{y}">{value:,.0f} samples/s</text>')
    return "\n".join([*parts, "</svg>", ""])


def _places(splits: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the positions of splits, (k, 2) in pixels: augmented at the top, encoded left, decoded right. Args: splits: (k, 3), like SPLITS."""
    decoded, augmented = splits[:, 1] / 100, splits[:, 2] / 100
    return np.column_stack([_LEFT + _SIDE * (decoded + augmented / 2), _TOP + _HIGH * (1 - augmented)])


def _colour(part: float) -> str:
    """Return the colour of a throughput. Args: part: from 0, the lowest, to 1, the highest."""
    steps = np.linspace(0, 1, len(_COLOURS))
    red, green, blue = (round(float(np.interp(part, steps, _COLOURS[:, channel]))) for channel in range(3))
    return f"#{red:02x}{green:02x}{blue:02x}"
