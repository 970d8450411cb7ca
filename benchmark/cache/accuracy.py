"""Accuracy of models trained with a cache, compared with models trained without one, on images that no model was trained on, seed by seed.

    python -m benchmark.cache accuracy [--seeds 5] [--epochs 20] [--share 0.4] [--side SIDE] [--report]
    python -m benchmark.cache accuracy --seeds 3 --epochs 2                                           (in a minute)

Handwritten digits of scikit-learn, two thirds of the 1,797 for training, as PNG files: decoded (what a cache may keep), and shifted by up to a pixel
at random. All seeds of a side train at once, each in a process with its own order and weights, so that they share the cache; without a cache
nothing ties them. A cache that serves the plain order, as `static`, must come to the very same models. The last line gives the p values of
Welch's t-test and of Mann and Whitney's, both two-sided (wanted: at least 0.05, no significant difference).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from scipy.stats import mannwhitneyu, ttest_ind
from torch import nn

from benchmark.cache.reading import Images, command, served
from benchmark.cache.samplers.compared_loader import ComparedLoader
from benchmark.cache.sides import CACHED, CHECKED, OURS, PLAIN, Side, open_side
from benchmark.cache.training_processes import TrainingProcesses
from benchmark.machine import busy_cores, write_report
from examples.digits.make_data import IMAGE_SIZE, draw
from modyn.dataset.config import DataConfig
from modyn.models.weights import build_model

NAME = "cache-accuracy"
BATCH_SIZE: Final = 32
PARSER = """
import io
from PIL import Image

def bytes_parser_function(data):
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("L"), dtype=np.float32) / 255).unsqueeze(0)
"""
SHIFT = "lambda image: torch.roll(image, tuple(torch.randint(-1, 2, (2,)).tolist()), (1, 2))"
DATA = DataConfig(dataset_id="images", bytes_parser_function=PARSER, random_transformations=(SHIFT,))
MODEL: Final = {"in_channels": 1, "image_size": IMAGE_SIZE, "num_classes": 10, "width": 8, "embedding_size": 32}


@dataclass(frozen=True, slots=True)
class Learning:
    """Training of a model from fresh weights. Picklable."""

    side: Side
    epochs: int
    seed: int


class Difference(NamedTuple):
    """Difference between two sides."""

    welch_p: float
    mann_whitney_p: float
    low: float
    """Bounds of the 95 % confidence interval of the difference of means, by Welch's test."""
    high: float


def main() -> None:
    """Measure, and print the last line `accuracy: p 0.81 (Welch), 0.75 (Mann-Whitney)`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.4, help="share of the decoded bytes that the cache holds")
    parser.add_argument("--side", choices=CACHED, default=CHECKED)
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds is at least 2: the sides are compared by a test")
    busy = busy_cores()
    found: dict[str, list[float]] = {}
    with digits() as read, TrainingProcesses(options.seeds) as processes:
        for name in (PLAIN, options.side):
            side = open_side(name, read, options.share, jobs=options.seeds)
            learned = processes.run(learn, [Learning(side, options.epochs, seed) for seed in range(options.seeds)])
            found[name], shared = [accuracy for accuracy, _ in learned], statistics.mean(part for _, part in learned)
            print(f"{name}: {', '.join(f'{accuracy:.2%}' for accuracy in found[name])}", flush=True)
        number = read.trigger_set.num_keys
    if options.side == "static" and found[PLAIN] != found[options.side]:
        raise SystemExit("a cache that serves the plain order has come to other models")
    if options.side == OURS and not shared:
        raise SystemExit("no training was served what another one has augmented: there is nothing to compare")
    difference = compare(found[PLAIN], found[options.side])
    seeds = "".join(f" | {seed}" for seed in range(options.seeds))
    rows = "\n".join(
        f"| {name} | {statistics.mean(values):.2%} | {statistics.stdev(values):.2%} | {' | '.join(f'{value:.2%}' for value in values)} |"
        for name, values in found.items()
    )
    body = (
        f"{number:,} digits, {options.epochs} epochs, {options.seeds} seeds at once, cache for {options.share:.0%}; {shared:.0%} of the samples had "
        f"been augmented by another training. Cores that other programs kept "
        f"busy just before: {busy:.1f}.\n\n| side | mean | standard deviation{seeds} |\n{'|---' * (3 + options.seeds)}|\n{rows}\n\n"
        f"Difference of the means: {100 * difference.low:+.2f} to {100 * difference.high:+.2f} points with 95 % confidence. "
        f"Welch's t-test: p = {difference.welch_p:.3f}; Mann and Whitney: p = {difference.mann_whitney_p:.3f}."
    )
    print(body)
    if options.report:
        print(f"report: {write_report(NAME, command('accuracy', options), body)}")
    print(f"accuracy: p {difference.welch_p:.2f} (Welch), {difference.mann_whitney_p:.2f} (Mann-Whitney)")


@contextmanager
def digits() -> Iterator[Images]:
    """Start services with the digits for training, and remove them at the end."""
    with tempfile.TemporaryDirectory(prefix="modyn-cache-") as name:
        folder = Path(name) / "images"
        folder.mkdir()
        pixels, labels = _digits(held_out=False)
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            draw(image, shifted=False).save(folder / f"{number:04d}.png")
            (folder / f"{number:04d}.label").write_text(str(label))
        size = sum(path.stat().st_size for path in folder.glob("*.png")) / len(labels)
        with served(folder, len(labels), ".png") as (services, trigger_set):
            yield Images(services, trigger_set, size, DATA, decoded_bytes=4 * IMAGE_SIZE**2)


def _digits(*, held_out: bool) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    found = load_digits()
    part = (np.arange(len(found.target)) % 3 == 0) == held_out
    return found.images[part], found.target[part]


def learn(learning: Learning) -> tuple[float, float]:
    """Train a model. Returns its accuracy on the held-out digits, and the share of its samples that another training augmented."""
    num_samples = num_shared = 0
    torch.manual_seed(learning.seed)
    model = build_model("SmallCNN", MODEL)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    with learning.side.loader(learning.seed, learning.epochs, BATCH_SIZE) as loader:
        for batch in loader:
            num_samples, num_shared = num_samples + len(batch), num_shared + batch.cached.augmented
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(model(batch.data), batch.labels, reduction="none")
            losses.mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if isinstance(loader, ComparedLoader) and loader.needs_losses:
                loader.rank(batch.keys.numpy(), losses.detach().numpy())
    pixels, labels = _digits(held_out=True)
    images = np.stack([np.asarray(draw(image, shifted=False), np.float32) / 255 for image in pixels])
    model.eval()
    with torch.no_grad():
        guessed = model(torch.from_numpy(images).unsqueeze(1)).argmax(1)
    return float((guessed == torch.from_numpy(labels)).double().mean()), num_shared / num_samples


def compare(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Test whether the sides differ. If each side has only one distinct value, they certainly differ or certainly do not.

    >>> compare([0.9, 0.92, 0.94], [0.9, 0.92, 0.94]).welch_p
    1.0
    >>> compare([0.9, 0.9], [0.9, 0.9])
    Difference(welch_p=1.0, mann_whitney_p=1.0, low=0.0, high=0.0)
    """
    shift = statistics.mean(other) - statistics.mean(one)
    if len(set(one)) == len(set(other)) == 1:
        p = 1.0 if one[0] == other[0] else 0.0
        return Difference(p, float(mannwhitneyu(other, one).pvalue) if shift else 1.0, shift, shift)
    welch = ttest_ind(other, one, equal_var=False)
    interval = welch.confidence_interval(0.95)
    return Difference(float(welch.pvalue), float(mannwhitneyu(other, one).pvalue), float(interval.low), float(interval.high))
