"""How fast a GPU computes: matrix products, attention, memory-bound kernels, launches.

Times are medians of repeated CUDA graphs of at least 1 ms, which hides the host, on
random bfloat16 data that rotates through more memory than the L2 cache has; attention
and normalization run with autograd, and the time of the host is then hidden by sizes.
``flop`` counts a multiply-add as two, of causal attention the lower half alone, and
2.5 times the forward pass for backward (five products in place of two). ``bytes`` are
those that a kernel must move: each input read once, each output written once.

Run ``python benchmarks/gpu_kernels.py --json kernels.json --csv kernels.csv``.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from page import save
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE, BF16 = "cuda", torch.bfloat16
CACHE = 256e6  # bytes that a set of inputs is repeated to, several times the L2
TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
WEIGHTS = (  # k, n: of GPT 760M, Llama 8B and 70B (whole, tp 8), GPT-3, DeepSeek-V3
    *((768, 3072), (3072, 768), (4096, 4096), (4096, 14336), (14336, 4096)),
    *((8192, 1024), (8192, 3584), (3584, 8192), (8192, 28672), (12288, 12288)),
    *((12288, 49152), (7168, 2048), (2048, 7168)),
)
EXPERTS = ((8, 4096, 14336), (32, 7168, 2048), (16, 768, 3072))  # local experts, k, n
Row = dict[str, Any]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=BF16)


def duration_us(work: Callable[[], object], least_ms: float = 2.0) -> float:
    """Median time of a call by events, warmed up, us."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times: list[float] = []
    repeats = 1
    while len(times) < 9:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        took_ms = begin.elapsed_time(end)
        if took_ms < least_ms and repeats < 10_000:
            repeats = max(repeats + 1, round(repeats * 1.3 * least_ms / took_ms))
            continue
        times.append(took_ms * 1e3 / repeats)
        if len(times) > 2 and took_ms > 50:
            break
    return statistics.median(times)


def graphed_us(works: list[Callable[[], object]]) -> float:
    """Median time of one of these, in a CUDA graph of all, us."""
    works[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in works:
            work()
    return duration_us(graph.replay) / len(works)


def copies(nbytes: float) -> range:
    return range(max(1, min(16, round(CACHE / nbytes))))


def product(m: int, n: int, k: int, layout: str = "nn") -> float:
    """Time of ``[m, k] x [k, n]``; a letter t: this operand is stored transposed."""
    sets = []
    for _ in copies(2.0 * (m * k + k * n + m * n)):
        a = random(k, m).t() if layout[0] == "t" else random(m, k)
        b = random(n, k).t() if layout[1] == "t" else random(k, n)
        sets.append((a, b, torch.empty(m, n, device=DEVICE, dtype=BF16)))
    return graphed_us([partial(torch.mm, a, b, out=c) for a, b, c in sets])


def gemms() -> Iterator[Row]:
    """A linear layer: y = x W', and its two products backward."""
    for k, n in WEIGHTS:
        for m in TOKENS:
            flop = 2 * m * n * k
            moved = 2 * (m * k + k * n + m * n)
            row = {"part": "gemm", "m": m, "n": n, "k": k, "flop": flop, "bytes": moved}
            yield row | {"name": "forward", "us": product(m, n, k, "nt")}
            yield row | {"name": "input gradient", "us": product(m, k, n, "nn")}
            yield row | {"name": "weight gradient", "us": product(n, k, m, "tn")}


def backward_us(
    call: Callable[[], torch.Tensor], inputs: tuple[torch.Tensor, ...]
) -> float:
    """Median time of the gradients of a call, us."""
    out = call()
    grad = torch.randn_like(out)
    return duration_us(
        lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)
    )


def attention() -> Iterator[Row]:
    kinds = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    for size, heads in ((64, 32), (128, 16)):
        for s in (1024, 2048, 4096, 8192, 16384, 32768, 65536):
            batch = max(1, 16384 // s)
            qkv = tuple(random(batch, heads, s, size).requires_grad_() for _ in "qkv")
            call = partial(F.scaled_dot_product_attention, *qkv, is_causal=True)
            flop = 2 * batch * heads * s * s * size
            row = {"part": "attention", "m": s, "n": size, "groups": batch * heads}
            for name, kind in kinds.items():
                try:
                    with sdpa_kernel(kind):
                        with torch.no_grad():
                            us = duration_us(call)
                        yield row | {"name": f"{name} forward", "us": us, "flop": flop}
                        us, flop2 = backward_us(call, qkv), 5 * flop // 2
                        far = {"name": f"{name} backward", "us": us, "flop": flop2}
                        yield row | far
                except RuntimeError as error:
                    print(f"{name} attention, {s} tokens, head size {size}: {error}")


def elementwise() -> Iterator[Row]:
    """Memory-bound kernels on ``[m, n]``, forward and backward."""
    keep, norm = torch.nn.Dropout(0.1), F.layer_norm
    # on x [m, n], y [m, n] and w [n]; bytes an element, forward and backward
    kernels: dict[str, tuple[Callable[..., torch.Tensor], int, int]] = {
        "copy": (lambda x, y, w: x.clone(), 4, 0),
        "layer norm": (lambda x, y, w: norm(x, x.shape[1:], w, w), 4, 6),
        "rms norm": (lambda x, y, w: F.rms_norm(x, x.shape[1:], w), 4, 6),
        "gelu": (lambda x, y, w: F.gelu(x), 4, 6),
        "softmax": (lambda x, y, w: F.softmax(x, -1), 4, 6),
        # two kernels: dropout writes a mask of a byte, the sum reads two
        "dropout and add": (lambda x, y, w: keep(x) + y, 5 + 6, 5),
        # the logits are converted to float32 first, as mixed precision does
        "cross entropy": (
            lambda x, y, w: F.cross_entropy(x.float(), y[:, 0].abs().long()),
            *(2 + 4 + 4 + 4, 4 + 4 + 4 + 2),
        ),
    }
    shapes = [(m, n) for n in (4096, 8192) for m in (2048, 8192, 32768)]
    for name, (call, forward, backward) in kernels.items():
        logits = name == "cross entropy"
        for m, n in [(4096, 50304), (8192, 128256)] if logits else shapes:
            x, y, w = random(m, n).requires_grad_(), random(m, n), random(n)
            row = {"part": "memory", "m": m, "n": n}
            work = partial(call, x, y, w)
            with torch.no_grad():
                us = duration_us(work)
            yield row | {"name": name, "us": us, "bytes": forward * m * n}
            if backward:
                us = backward_us(work, (x,))
                far = {"name": f"{name} backward", "us": us}
                yield row | far | {"bytes": backward * m * n}
    for count in (10_000_000, 400_000_000):
        p = torch.randn(count, device=DEVICE, requires_grad=True)
        p.grad = torch.randn_like(p)
        step = torch.optim.AdamW([p], fused=True).step
        row = {"part": "memory", "name": "fused AdamW, float32", "m": 1, "n": count}
        yield row | {"us": duration_us(step), "bytes": 28 * count}


def experts() -> Iterator[Row]:
    """Products of local experts, the same number of tokens for each."""
    for e, k, n in EXPERTS:
        w = random(e, k, n)
        for m in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
            x, out = random(e, m, k), torch.empty(e, m, n, device=DEVICE, dtype=BF16)
            ends = torch.arange(1, e + 1, device=DEVICE, dtype=torch.int32) * m
            row = {"part": "experts", "m": m, "n": n, "k": k, "groups": e}
            row |= {"flop": 2 * e * m * n * k, "bytes": 2 * e * (m * k + k * n + m * n)}
            loop = partial(loop_of_products, x, w, out)
            yield row | {"name": "loop, launched", "us": duration_us(loop)}
            ways = {"loop, graph": loop, "batched": partial(torch.bmm, x, w, out=out)}
            if hasattr(torch, "_grouped_mm"):
                one = partial(torch._grouped_mm, x.view(e * m, k), w, offs=ends)
                ways["torch._grouped_mm"] = one
            for name, way in ways.items():
                yield row | {"name": name, "us": graphed_us([way])}


def loop_of_products(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
    for a, b, c in zip(x, w, out, strict=True):
        torch.mm(a, b, out=c)


def launches() -> Iterator[Row]:
    """Time of the host for a call, and of the device for a tiny kernel."""
    small, big = random(64, 64), random(64, 64).requires_grad_()
    works: dict[str, Callable[[], object]] = {
        "add_": lambda: small.add_(1),
        "mm": lambda: torch.mm(small, small),
        "linear with autograd": lambda: F.linear(big, big),
        "layer norm with autograd": lambda: F.layer_norm(big, (64,)),
    }
    for name, work in works.items():
        each = []
        for _ in range(21):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(300):
                work()
            each.append((time.perf_counter() - begin) / 300 * 1e6)
        row = {"part": "launch", "m": 64, "n": 64}
        yield row | {"name": f"{name}: host", "us": statistics.median(each)}
        yield row | {"name": f"{name}: one after the other", "us": duration_us(work)}
    graphed = graphed_us([lambda: small.add_(1)] * 200)
    yield {"part": "launch", "m": 64, "n": 64, "name": "add_: graph", "us": graphed}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    card = torch.cuda.get_device_name(0)
    source = (
        f"measured by benchmarks/gpu_kernels.py on one {card}, torch "
        f"{torch.__version__}, CUDA {torch.version.cuda}, "
        f"{datetime.date.today():%Y-%m-%d}"
    )
    rows: list[Row] = []
    for part in (gemms, attention, experts, elementwise, launches):
        began = time.monotonic()
        rows += part()
        torch.cuda.empty_cache()
        print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)
        table = pd.DataFrame(rows)
        table["tflops"] = table.get("flop", 0) / table.us / 1e6
        table["gbs"] = table.get("bytes", float("nan")) / table.us / 1e3
        if given.csv:
            ints = ["m", "n", "k", "groups", "flop", "bytes"]
            shown = table.reindex(
                columns=["part", "name", *ints, "us", "tflops", "gbs"]
            )
            shown[ints] = shown[ints].astype("Int64")
            text = shown.to_csv(index=False, float_format="%.5g")
            given.csv.write_text(f"# {source}\n{text}")
        if given.json:
            save(given.json, {"source": source, "rows": rows})
    print(source)


if __name__ == "__main__":
    main()
