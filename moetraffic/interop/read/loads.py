"""Import loads of experts that inference engines and training frameworks save.

==============  ======================================================================
sglang          ``.pt`` or JSON, ``{"logical_count": [passes, layers, experts]}``; of
                each rank, CSV ``layer_id,expert_id,count``
vLLM            JSON lines, ``{"record_type": "eplb_load_stats", "step", "expert_load":
                [layers, slots], "p2l_map": [layers, slots]}``
vllm-ascend     ``moe_load*.npy`` ``[layers, ranks, slots]``
Megatron-LM     ``tokens_per_expert/rank*.jsonl``, ``{"iter", "block", "layer", "tpe":
                [micro-batches, experts of the rank]}``; older, ``{"iteration", "3":
                [..], "4": [..]}`` by layer
routing replay  ``routed_experts`` ``[tokens, layers, k]``, the experts of each token
others          arrays ``[layers, experts]`` or ``[steps, layers, experts]``
==============  ======================================================================

The ranks that tokens come from are in none of them: the load is that of a group of the
kind "load", which has one rank.
"""

from __future__ import annotations

import re
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace.model import ROUTING, Group
from moetraffic.units import rank_span

from .files import (
    MOST_ITERATIONS,
    MOST_LAYERS,
    MOST_TOKENS,
    json_objects,
    lines,
    opened_bytes,
    read_json,
    whole,
    words,
    wrong,
)
from .rows import Contents, Importer, ImportOptions, Row, Step

Load = dict[tuple[int, int, int], Int64]
"""Token copies ``[E]`` by iteration, micro-batch and layer."""

LOAD = Group(kind="load", ranks=(0,))
LOADS = ("logical_count", "expert_load", "expert_load_window", "moe_load", "load")
CHOSEN = ("routed_experts", "topk_ids")
HEADER = "layer_id,expert_id,count"
RECORDS = re.compile(r'"eplb_load_|"tpe"\s*:|^\{"iter(ation)?"\s*:\s*\d+,\s*"\d+"\s*:')
BINARY = (".pt", ".pth", ".npy", ".npz", ".safetensors")
RANK = re.compile(r"rank[_\-.]?(\d{1,6})(?!\d)", re.I)
MOST_CELLS = 1 << 28  # numbers of a file
MOST_EXPERTS = 1 << 16
MOST_CHOSEN = 16  # experts of a token in arrays whose names do not say what they are
REMEDY = "save counts of tokens as [layers, experts] or [steps, layers, experts]"


def read(files: Sequence[Path], options: ImportOptions) -> Contents:
    """Read the load of each layer and iteration, summed over the ranks of files."""
    if options.ranks > 1:
        raise TraceError(
            f"a load has no source ranks, but --ranks is {options.ranks}: leave it "
            "out, and give --ep to analyze, place or evaluate"
        )
    contents = Contents(files={0: files[0].name}, world=1)
    contents.world_by = "a load of experts, whose source ranks are unknown"
    by_rank: dict[int, Load] = {}
    for file in sorted(files):
        named = RANK.search(file.name)
        own = by_rank.setdefault(int(named[1]) if named else -1, {})
        first = 1 + max((iteration for iteration, _, _ in own), default=-1)
        load = _load(file, contents)
        if not any(counts.any() for counts in load.values()):
            raise wrong(file, "it holds no load", "name a file with loads")
        own |= {(first + i, slot, layer): c for (i, slot, layer), c in load.items()}
    local = bool(contents.seen.pop("tpe", 0))
    if contents.seen.pop("highest", 0) and not options.experts:
        contents.inferred.append("experts up to the highest in the files (--experts)")
    if local:
        by_rank = _of_model(by_rank, options, contents)
    load = _summed(by_rank, options, contents)
    copies: defaultdict[int, defaultdict[int, int]]
    copies = defaultdict(lambda: defaultdict(int))
    for (iteration, _, layer), counts in sorted(load.items(), key=lambda pair: pair[0]):
        row = Row(rank=0, operation=ROUTING, group=LOAD, sent=counts, layer=layer)
        row.iteration = iteration
        row.received = [-local] * len(counts)  # dropped; before Megatron's: unknown
        contents.rows.append(row)
        copies[iteration][layer] += int(counts.sum())
    contents.k = contents.k or options.k
    for iteration, layers in copies.items():
        step = Step(rank=0, iteration=iteration)
        if contents.k and len(set(layers.values())) == 1:
            tokens, rest = divmod(next(iter(layers.values())), contents.k)
            step.tokens = -1 if rest else tokens
        contents.steps.append(step)
    if any(step.tokens >= 0 for step in contents.steps):
        contents.inferred.append(f"tokens from the copies, {contents.k} for each token")
    return contents


def _summed(
    by_rank: Mapping[int, Load], options: ImportOptions, contents: Contents
) -> Load:
    """Sum the load over ranks.

    Layers and iterations without any load are left out: dense layers, and passes that
    a ring buffer has not reached.
    """
    seen = max(len(counts) for own in by_rank.values() for counts in own.values())
    if 0 < options.experts < seen:
        raise TraceError(
            f"the files have a load of expert {seen - 1}, but --experts is "
            f"{options.experts}: raise it"
        )
    contents.experts = max(seen, options.experts)
    loads = [
        {key: np.pad(own[key], (0, contents.experts - len(own[key]))) for key in own}
        for own in by_rank.values()
    ]
    first, *others = loads
    if others:
        same = all(
            own.keys() == first.keys() and all((own[k] == first[k]).all() for k in own)
            for own in others
        )
        loads = [first] if same else loads
        contents.inferred.append(
            f"the files of {len(by_rank)} ranks are equal, each the load of all ranks"
            if same
            else f"the load is the sum over the files of {len(by_rank)} ranks"
        )
    load: Load = {}
    for own in loads:
        for key, counts in own.items():
            load[key] = load[key] + counts if key in load else counts
    for axis, name in ((0, "iterations"), (2, "layers")):
        used = {key[axis] for key, counts in load.items() if counts.any()}
        if idle := sorted({key[axis] for key in load} - used):
            contents.inferred.append(
                f"{name} left out, without load: {rank_span(idle)}"
            )
        load = {key: counts for key, counts in load.items() if key[axis] in used}
    if max(counts.max() for counts in load.values()) > MOST_TOKENS:
        raise TraceError(
            f"an expert has at most {MOST_TOKENS:,} token copies in an iteration, but "
            "these files have more: import fewer of them"
        )
    return load


def _of_model(
    by_rank: Mapping[int, Load], options: ImportOptions, contents: Contents
) -> dict[int, Load]:
    """Number the experts of ranks and the layers of pipeline stages in the whole model.

    Megatron's ranks record their own experts; a stage numbers its layers from 0 on.
    """
    ranks, pp = sorted(by_rank), options.pp or 1
    sizes = {len(counts) for own in by_rank.values() for counts in own.values()}
    everyone = ranks == list(range(len(ranks)))
    if len(sizes) > 1 or (pp > 1 and (len(ranks) % pp or not everyone)):
        raise TraceError(
            f"ranks have equally many experts, stages (--pp) equally many ranks, but "
            f"the files are of ranks {rank_span(ranks)} with {sorted(sizes)} experts: "
            "import all files of one run"
        )
    stage_ranks = len(ranks) // (options.pp or 1) if everyone else max(ranks) + 1
    ep, size = options.ep or (stage_ranks if everyone else 1), sizes.pop()
    if not options.ep:
        contents.inferred.append(f"ranks that hold the experts, in order: {ep} (--ep)")
    if not everyone:
        contents.missing.append(f"files of other ranks than {rank_span(ranks)}")
    depth: defaultdict[int, int] = defaultdict(int)  # layers of each stage
    for rank, own in by_rank.items():
        last = max(layer for _, _, layer in own)
        depth[rank // stage_ranks] = max(depth[rank // stage_ranks], last + 1)
    numbered: dict[int, Load] = {}
    for rank, own in by_rank.items():
        before = sum(depth[stage] for stage in range(rank // stage_ranks))
        numbered[rank] = {
            (iteration, slot, layer + before): np.pad(
                counts, (rank % ep * size, (ep - 1 - rank % ep) * size)
            )
            for (iteration, slot, layer), counts in own.items()
        }
    return numbered


# ---- files --------------------------------------------------------------------------


def _load(path: Path, contents: Contents) -> Load:
    """Read the load of a file, whatever its form."""
    with opened_bytes(path) as raw:
        beginning = raw.read(4096)
    text = beginning.decode("utf-8-sig", "replace").lstrip()
    if text.replace(" ", "").startswith(HEADER):
        contents.seen["highest"] += 1
        return _table(path)
    if RECORDS.search(text):
        return _records(path, contents)
    content = read_json(path) if text[:1] in ("{", "[") else _binary(path, beginning)
    arrays = content if isinstance(content, dict) else {path.stem: content}
    known = [name for name in (*LOADS, *CHOSEN) if name in arrays]
    if not known and len(arrays) != 1:
        what = f"it holds {', '.join(map(str, arrays))[:80] or 'nothing'}, but neither"
        raise wrong(path, f"{what} {LOADS[0]} nor {CHOSEN[0]}", "save one of them")
    name = next(iter(known or arrays))
    return _of_array(path, str(name), arrays[name], contents)


def _table(path: Path) -> Load:
    """Read a table of layers and experts; experts without a line have no load."""
    layers: defaultdict[int, dict[int, int]] = defaultdict(dict)
    limits = (MOST_LAYERS, MOST_EXPERTS, MOST_TOKENS)
    for number, line in enumerate(lines(path), 1):
        cells = [whole(cell.strip()) for cell in line.split(",")]
        if number == 1 or not line.strip():
            continue
        numbers = [cell for cell in cells if cell is not None]
        if len(cells) != 3 or len(numbers) != 3 or not np.less(numbers, limits).all():
            what = f"line {number} is {line[:40]!r}, not a layer, expert and count"
            raise wrong(path, what, "correct it there")
        layers[numbers[0]][numbers[1]] = numbers[2]
    load: Load = {}
    for layer, counts in layers.items():
        load[0, 0, layer] = np.zeros(max(counts) + 1, np.int64)
        load[0, 0, layer][[*counts]] = [*counts.values()]
    return load


def _records(path: Path, contents: Contents) -> Load:
    """Read JSON lines: vLLM's loads of slots, Megatron's of the experts of a rank."""
    load: Load = {}
    for number, line in json_objects(path, contents.missing):
        if words(line.get("record_type", "eplb_load_stats")) != "eplb_load_stats":
            continue
        step = whole(line.get("step", line.get("iter", line.get("iteration"))))
        if step is None or step >= MOST_ITERATIONS:
            raise wrong(path, f"line {number} has no iteration", "correct it there")
        if "expert_load" in line:
            slots = _counts(path, line["expert_load"])
            held = _counts(path, line.get("p2l_map"))
            experts = int(held.max(initial=0)) + 1
            if slots.ndim != 2 or held.shape != slots.shape or experts > MOST_EXPERTS:
                what = f"line {number} has no load and expert of each slot"
                raise wrong(path, what, "correct it there")
            for layer, counts in enumerate(slots):
                summed = np.bincount(held[layer], counts, experts)
                load[step, 0, layer] = summed.astype(np.int64)
            continue
        contents.seen["tpe"] += 1
        if words(line.get("block", "decoder")) != "decoder":
            contents.left_out[0, "load of a layer beside the decoder's"] += 1
            continue
        layers = [(line.get("layer"), line["tpe"])] if "tpe" in line else line.items()
        for name, batches in layers:
            if (own := whole(name)) is None:
                continue
            counts = np.atleast_2d(_counts(path, batches))
            if own >= MOST_LAYERS or counts.ndim != 2 or not RANK.search(path.name):
                what = f"line {number} is not of the experts of a rank"
                raise wrong(path, what, "name the file like rank0.jsonl")
            load |= {(step, slot, own): batch for slot, batch in enumerate(counts)}
    return load


def _binary(path: Path, beginning: bytes) -> Any:
    """Read the named arrays of a binary file; no object is unpickled."""
    try:
        size = path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                size = sum(member.file_size for member in archive.infolist())
        if size > 8 * MOST_CELLS:
            raise wrong(path, f"it has {size:,} bytes", "save the load of fewer steps")
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return load_file(path)
        if beginning.startswith(b"\x93NUMPY") or path.suffix == ".npz":
            with path.open("rb") as file:
                array = np.load(file, allow_pickle=False)
                return array if isinstance(array, np.ndarray) else dict(array)
        import torch

        # makes tensors and containers, but no other object
        return torch.load(path, map_location="cpu", weights_only=True)
    except ModuleNotFoundError as error:
        what, remedy = f"it needs {error.name}", f"pip install {error.name}"
    except TraceError:
        raise
    except Exception as error:  # a damaged file raises any type
        why = (str(error).splitlines() or [type(error).__name__])[0][:120]
        what, remedy = f"it holds not only arrays ({why})", "save its load as an array"
    raise wrong(path, what, remedy)


def _of_array(path: Path, name: str, value: Any, contents: Contents) -> Load:
    """Read loads, or experts of tokens, from an array; its or the file's name decides.

    Without such a name, small arrays of distinct numbers can be both.
    """
    said = next((n for n in (*CHOSEN, *LOADS) if n in f"{name} {path.stem}"), "")
    array = _counts(path, value, chosen=said in CHOSEN)
    if not array.size:
        raise wrong(path, f"{name} is empty", REMEDY)
    if said in CHOSEN:
        return _of_tokens(path, array, contents)
    if not said and array.ndim == 3 and 1 < array.shape[2] <= MOST_CHOSEN:
        distinct = (np.diff(np.sort(array, axis=2)) > 0).all()
        if distinct and array.max(initial=0) < MOST_EXPERTS:
            what = "it can be loads by step or the experts of tokens"
            raise wrong(path, what, f"name it {LOADS[0]} or {CHOSEN[0]}")
    if said == "moe_load" and array.ndim == 3:
        contents.inferred.append("the slots of ranks are taken for experts, in order")
        array = array.reshape(len(array), -1)
    if array.ndim not in (1, 2, 3) or array.shape[-1] > MOST_EXPERTS:
        raise wrong(path, f"{name} has the shape {list(array.shape)}", REMEDY)
    steps = array.reshape((-1, *np.atleast_2d(array).shape[-2:]))
    return {
        (step, 0, layer): steps[step, layer]
        for step, layer in np.ndindex(steps.shape[:2])
    }


def _of_tokens(path: Path, chosen: Int64, contents: Contents) -> Load:
    """Count copies from the experts of tokens ``[tokens, layers, k]``.

    Entries below 0 and rows with an expert twice are padding.
    """
    if chosen.ndim != 3 or chosen.max() >= MOST_EXPERTS:
        what = f"its experts of tokens have the shape {list(chosen.shape)}"
        raise wrong(path, what, "save them as [tokens, layers, k]")
    if contents.k not in (0, chosen.shape[2]):
        what = f"its tokens have {chosen.shape[2]} experts, those before {contents.k}"
        raise wrong(path, what, "import the files of one model")
    contents.k = chosen.shape[2]
    contents.seen["highest"] += 1
    ordered = np.sort(chosen, axis=2)
    valid = (ordered[..., 0] >= 0) & (np.diff(ordered) > 0).all(axis=2)
    if padding := int((~valid.any(axis=1)).sum()):
        contents.missing.append(f"{padding} tokens of {path.name} have no experts")
    return {
        (0, 0, layer): np.bincount(chosen[valid[:, layer], layer].ravel(), minlength=1)
        for layer in range(chosen.shape[1])
    }


def _counts(path: Path, value: Any, *, chosen: bool = False) -> Int64:
    """Convert an array, a tensor or lists to integers from 0 on, experts from -1."""
    try:
        if hasattr(value, "detach"):  # a tensor, of types that numpy may not have
            value = value.detach().cpu()
            value = (value.double() if value.is_floating_point() else value).numpy()
        array = np.asarray(value)
        valid = array.dtype.kind in "iuf" and array.size <= MOST_CELLS
    except (ValueError, TypeError, RuntimeError, OverflowError):  # ragged, sparse
        valid = False
    if not (valid and ((array >= -chosen) & (array <= MOST_TOKENS)).all()):
        raise wrong(path, "its values are no counts of tokens", REMEDY)
    if (counts := array.astype(np.int64)).size and (counts != array).any():
        raise wrong(path, "its loads have fractions", REMEDY)
    return counts


def matches(path: Path, beginning: str) -> bool:
    """Return whether a file can hold loads."""
    text = beginning.lstrip()
    if text[:1] not in ("{", "["):
        table = text.replace(" ", "").startswith(HEADER)
        return table or path.suffix in BINARY
    keys = (f'"{name}"' for name in (*LOADS[:-1], CHOSEN[0]))
    return bool(RECORDS.search(text)) or any(key in text[:4096] for key in keys)


IMPORTER = Importer(
    name="load",
    what="loads of experts: sglang, vLLM, Megatron's tokens_per_expert, routing replay",
    matches=matches,
    read=read,
)
