"""Capture the runs of the gallery, and draw its figures.

python benchmarks/gallery.py             # capture to data/, then draw
python benchmarks/gallery.py --figures   # draw the figures of docs/gallery/ alone
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
VIRTUAL = (
    "--virtual --ep 8 --layers 4 --moe-every 1 --hidden 32 --sequence 64 "
    "--micro-batch 4 --seed 0 --iterations 200"
)
RUNS = {
    "top1-balanced": "--router switch --experts 8",
    "top1-unbalanced": "--router switch --experts 8 --balance 0",
    "top2-balanced": "--router topk --k 2 --experts 8",
    "top2-unbalanced": "--router topk --k 2 --experts 8 --balance 0",
    "top8-balanced": "--router topk --k 8 --experts 32",
    "top8-lossfree": "--router deepseek --k 8 --experts 32 --balance 0",
}
DRAWN = ("top1-balanced", "top1-unbalanced")


def moetraffic(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "moetraffic", *arguments], check=True)


def draw(name: str) -> None:
    """Draw the evenness of the load of a run."""
    path = ROOT / "data" / f"run-{name}.h5"
    with tempfile.TemporaryDirectory() as made:
        plot = f"plot {path} -o {made}/{name} --only entropy --width 7in"
        moetraffic(*plot.split())
        target = ROOT / "docs" / "gallery" / f"{name}-entropy.png"
        shutil.copy(Path(made) / name / "entropy.png", target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", action="store_true", help="draw the figures alone")
    parser.add_argument("names", nargs="*", default=list(RUNS))
    asked = parser.parse_args()
    for name in asked.names:
        if not asked.figures:
            path = ROOT / "data" / f"run-{name}.h5"
            options = f"capture {VIRTUAL} {RUNS[name]} -o {path} --force"
            moetraffic(*options.split())
        if name in DRAWN:
            draw(name)


if __name__ == "__main__":
    main()
