"""Groups have the kinds that device meshes and frameworks give them."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed import fake_pg

from moetraffic.capture.group_kinds import kind_of


@pytest.fixture
def four() -> Iterator[None]:
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("four")
def test_names_of_meshes_and_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "ep"))
    bare = init_device_mesh("cpu", (2, 2))
    found = [mesh.get_group("dp_shard"), mesh.get_group("ep"), bare.get_group(0)]
    assert [kind_of(g, everyone=False) for g in found] == ["dp_shard", "ep", "other"]
    for described, kind in (
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "edp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("mesh_world", "other"),
        ("mesh_\x1b[31m", "other"),
        ("something else", "other"),
    ):
        group = dist.new_group([0, 1], group_desc=described)
        assert kind_of(group, everyone=False) == kind
    # DeepSpeed keeps its groups in dicts, by size
    held, free = dist.new_group([0, 1]), dist.new_group(list(range(4)))
    deepspeed = types.ModuleType("deepspeed.utils.groups")
    vars(deepspeed)["_EXPERT_PARALLEL_GROUP"] = {"ep_size_2": held}
    monkeypatch.setitem(sys.modules, deepspeed.__name__, deepspeed)
    assert kind_of(held, everyone=False) == "ep"
    assert kind_of(free, everyone=True) == "world"
    assert dist.group.WORLD is not None
    assert kind_of(dist.group.WORLD, everyone=True) == "world"
