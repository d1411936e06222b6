"""Make the gallery: capture the runs of the shipped models, and a page for each.

python benchmarks/gallery.py             # capture to data/, then write the pages
python benchmarks/gallery.py --pages     # write the pages of docs/gallery/ alone
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
LOADED = "a load-balancing loss of 0.01"
RUNS = {
    "top1-balanced": (
        "--router switch --experts 8",
        f"8 experts, top-1 (Switch), {LOADED}",
    ),
    "top1-unbalanced": (
        "--router switch --experts 8 --balance 0",
        "8 experts, top-1 (Switch), no load-balancing loss",
    ),
    "top2-balanced": ("--router topk --k 2 --experts 8", f"8 experts, top-2, {LOADED}"),
    "top2-unbalanced": (
        "--router topk --k 2 --experts 8 --balance 0",
        "8 experts, top-2, no load-balancing loss",
    ),
    "top8-balanced": (
        "--router topk --k 8 --experts 32",
        f"32 experts, top-8, {LOADED}",
    ),
    "top8-lossfree": (
        "--router deepseek --k 8 --experts 32 --balance 0",
        "32 experts, top-8 by sigmoid scores, loss-free bias (DeepSeek-V3)",
    ),
}
PICTURES = {
    "traffic": "Bytes between ranks in the first, a middle and the last iteration",
    "demand-layer-3": "Token copies of the last layer in the first, a middle and the "
    "last iteration",
    "entropy": "Evenness of the expert load over the run",
    "complexity": "Temporal and non-temporal complexity",
}


def moetraffic(*arguments: str, folder: str = ".") -> str:
    """Run a verb in a folder and return what it prints."""
    command = [sys.executable, "-m", "moetraffic", *arguments]
    ran = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=folder
    )
    return ran.stdout


def page(name: str) -> None:
    """Write the page and the pictures of a run."""
    options, what = RUNS[name]
    path = ROOT / "data" / f"run-{name}.h5"
    folder = ROOT / "docs" / "gallery"
    folder.mkdir(exist_ok=True)
    plot = "--only traffic,demand,entropy,complexity --width 7in"
    with tempfile.TemporaryDirectory() as made:
        pictures = Path(made) / name
        moetraffic("plot", str(path), "-o", str(pictures), *plot.split())
        for picture in PICTURES:
            target = folder / f"{name}-{picture}.png"
            target.write_bytes((pictures / f"{picture}.png").read_bytes())
        shutil.copy(path, Path(made) / f"{name}.h5")
        answer = moetraffic("analyze", f"{name}.h5", folder=made).strip()
    shown = "\n\n".join(
        f"![{title}]({name}-{picture}.png)\n\n"
        f"*`moetraffic plot {name}.h5 -o {name} {plot}`: {title.lower()}*"
        for picture, title in PICTURES.items()
    )
    (folder / f"{name}.md").write_text(
        f"""# {name}

{what[0].upper()}{what[1:]}. A GPT of 4 layers, each with
experts, hidden size 32, trained for 200 iterations on the text of Python's standard
library, with 8 virtual ranks in one process: real routing, no times. Models fitted to a
longer run of this shape are shipped as `{name}-early` and `{name}-late`
([generation](../generate.md)).

```sh
python -m moetraffic.data {name} {name}.h5
moetraffic info {name}.h5
moetraffic plot {name}.h5 -o {name} {plot}
```

It was captured by

```text
moetraffic capture {VIRTUAL} {options} -o {name}.h5
```

## Conclusions

`moetraffic analyze {name}.h5` prints:

```text
{answer}
```

## Pictures

{shown}
"""
    )


def main() -> None:
    """Capture the runs, unless only the pages are asked for, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", action="store_true", help="write the pages alone")
    parser.add_argument("names", nargs="*", default=list(RUNS))
    asked = parser.parse_args()
    for name in asked.names:
        if not asked.pages:
            path = ROOT / "data" / f"run-{name}.h5"
            options = f"capture {VIRTUAL} {RUNS[name][0]} -o {path} --force"
            moetraffic(*options.split())
        page(name)


if __name__ == "__main__":
    main()
