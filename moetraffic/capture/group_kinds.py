"""Kinds of process groups from the names that programs and frameworks give them.

The first of these that names the group is used: the description of the group
(``group_desc``: torch's device meshes write ``mesh_<dimension>``, Megatron-Core the
name of its global variable), and the global variable of Megatron-Core or DeepSpeed that
holds it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist

WORLD, OTHER = "world", "other"
MESH = "mesh_"
LONGEST = 32  # characters of a mesh dimension's name

NAMES = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "SEQUENCE_PARALLEL_GROUP": "sp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "EXPERT_PARALLEL_GROUP": "ep",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "etp_ep",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
}
"""Kinds by the names of Megatron-Core's and DeepSpeed's groups."""

MODULES = ("megatron.core.parallel_state", "deepspeed.utils.groups")
"""Modules with global variables ``_<name>`` that hold a group, or a dict or list."""


def kind_of(group: dist.ProcessGroup, *, everyone: bool) -> str:
    """Return the kind of a process group, "world" or "other" if it has no name.

    ``everyone`` is whether the group has all ranks; the default group is "world".
    """
    given = str(getattr(group, "group_desc", "") or "")
    if given == "default_pg":
        return WORLD
    if given in NAMES:
        return NAMES[given]
    name = given.removeprefix(MESH)
    generated = name in ("default", WORLD, OTHER) or name.startswith("dim_")
    if name != given and not generated and name.isascii() and name.isidentifier():
        return name[:LONGEST]
    for module in MODULES:
        for name, kind in NAMES.items():
            held = getattr(sys.modules.get(module), f"_{name}", None)
            groups = held.values() if isinstance(held, dict) else held
            if group is groups or (
                isinstance(groups, Iterable) and any(g is group for g in groups)
            ):
                return kind
    return WORLD if everyone else OTHER
