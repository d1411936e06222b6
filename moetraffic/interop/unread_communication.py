"""Communication that a profile contains, but not as collectives that can be imported.

Libraries such as DeepEP send from kernels of their own, through NVLink or NVSHMEM: a
profile has the names and times of these kernels, but neither bytes nor destinations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

OF_TORCH = re.compile(r"record_param_comms$|c10d::|(?:nccl|gloo|mpi|ucc|hccl|xccl):")
OF_NCCL = re.compile(r"[nr]ccl", re.I)
OF_KERNELS = re.compile(  # of libraries that do not call torch.distributed
    r"deep_?ep\b|\bintranode::|\binternode(?:_ll)?::|nvshmem|rocshmem|mscclpp|pplx"
    r"|all_?to_?all|all_?reduce|all_?gather|reduce_?scatter|multimem|symm_?mem",
    re.I,
)
PLAIN = re.compile(r"(?:void\s+)?([\w:]+)")
SHOWN = 8  # names in a sentence


def communication_name(name: str, *, kernel: bool) -> str:
    """Return the name of a communication event without its arguments, "" for others.

    >>> communication_name("void deep_ep::intranode::dispatch<8>(int4*)", kernel=True)
    'deep_ep::intranode::dispatch'
    >>> name = "void at::(anonymous namespace)::one_shot_all_reduce<1>(float*)"
    >>> communication_name(name, kernel=True)
    'at::one_shot_all_reduce'
    >>> communication_name("aten::add", kernel=False)
    ''
    """
    name = name.replace("(anonymous namespace)::", "")
    if kernel:
        known = OF_NCCL.search(name) or OF_KERNELS.search(name.partition("(")[0])
    else:
        known = OF_TORCH.match(name)
    plain = PLAIN.match(name)
    return plain[1].rstrip(":") if known and plain else ""


def beyond_torch(kernel: str) -> bool:
    """Return whether a communication kernel is of no collective of torch."""
    return not OF_NCCL.search(kernel)


def describe(seen: Mapping[str, int], left_out: Iterable[str]) -> str:
    """Describe the communication of files from which no call could be imported.

    ``seen`` has the numbers of events by name, ``left_out`` the reasons for single
    calls.
    """
    reasons = sorted(set(left_out))
    named = Counter(seen).most_common(SHOWN)
    if not named:
        return f"it has {', '.join(reasons)}" if reasons else "it has no communication"
    there = ", ".join(f"{count} {name}" for name, count in named)
    more = f" and {len(seen) - SHOWN} other names" if len(seen) > SHOWN else ""
    if not reasons:
        reasons = ["without an operator or record_param_comms that has their group"]
    return f"it has {there}{more}, but {', '.join(reasons)}"
