"""Routers of other people's models are found, read exactly, and left as they were."""

from __future__ import annotations

import ast
import copy
import io
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairscale.nn.moe.top2gate import Top2Gate
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from moetraffic import capture
from moetraffic.capture import annotate
from moetraffic.capture.routers import layer_index, router_readers
from moetraffic.capture.routers.router_hooks import router, watch_routers
from moetraffic.capture.token_sample import TokenSample, choice_ids
from moetraffic.capture.validation import demand_of
from moetraffic.errors import CaptureError
from moetraffic.gating import FairscaleTop2Router
from moetraffic.trace.model import NONE_BEFORE

HIDDEN, EXPERTS, TOKENS = 8, 4, 12


class Gate(nn.Module):
    """A router of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(HIDDEN, EXPERTS)
        self.num_experts = EXPERTS

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, ids = self.weight(x).topk(2, -1)
        return scores.softmax(-1), ids


class Mixture(nn.Module):
    def __init__(self, gates: int = 0) -> None:
        super().__init__()
        if gates:
            self.gates = nn.ModuleList(Gate() for _ in range(gates))
        else:
            self.gate = Gate()

    def forward(self, x: Tensor) -> Tensor:
        gates = self.gates if hasattr(self, "gates") else [self.gate]
        for gate in gates:
            scores, ids = gate(x)
            weight = torch.zeros(len(x), EXPERTS).scatter(1, ids, scores)
            x = x * weight.sum(1, keepdim=True)
        return x


class Stack(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mixture() for _ in range(depth))

    def forward(self, x: Tensor, again: bool = False) -> Tensor:
        for layer in self.layers:
            y = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
            x = x + y
        return x


Told = list[tuple[int, list[int]]]


@pytest.fixture
def told() -> Iterator[Told]:
    """What is told of routers that are watched while the test runs."""
    heard: Told = []
    known = router(Gate, lambda inputs, output: output[1])
    undo = watch_routers(
        lambda layer, demand, dropped, group: heard.append((layer, demand.tolist()))
    )
    yield heard
    undo()
    known()


def counts(gate: nn.Module, x: Tensor) -> list[int]:
    return gate(x)[1].flatten().bincount(minlength=EXPERTS).tolist()


def test_routers_made_before_and_after_are_found(told: Told) -> None:
    x = torch.randn(TOKENS, HIDDEN)
    early = Stack()
    heard: Told = []
    undo = watch_routers(
        lambda layer, demand, dropped, group: heard.append((layer, demand.tolist()))
    )
    late = Stack()
    early(x)
    late(x)
    undo()
    # a second model's layers follow the first one's
    assert [layer for layer, _ in told] == [0, 1, 2, 3, 4, 5]
    assert all(sum(demand) == 2 * TOKENS for _, demand in told)
    assert heard == told


def test_demand_is_counted_exactly(told: Told) -> None:
    mixture, x = Mixture(), torch.randn(TOKENS, HIDDEN)
    mixture(x)
    first = told[0]
    assert first == (0, counts(mixture.gate, x))


def test_a_router_has_the_layer_that_is_annotated_around_it(told: Told) -> None:
    stack = Stack(2)
    with capture.at(layer=7, label="mine"):
        stack.layers[0](torch.randn(TOKENS, HIDDEN))
    assert told[-1][0] == 7


def test_recomputation_is_told_again_in_its_layer(told: Told) -> None:
    stack = Stack()
    x = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    stack(x, True).sum().backward()
    assert [layer for layer, _ in told] == [0, 1, 2, 2, 1, 0]
    assert told[:3] == told[:2:-1]
    # recomputation ends by an exception as soon as it has what it needs
    assert annotate.place() == annotate.NO_CONTEXT


@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param("eager", marks=pytest.mark.slow),
        pytest.param("inductor", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_model_keeps_one_graph_and_tells(told: Told, backend: str) -> None:
    torch._dynamo.reset()
    stack = Stack()
    x = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    expected = stack(x)
    eager = list(told)
    told.clear()
    compiled = torch.compile(stack, backend=backend, fullgraph=True)
    for _ in range(2):
        result = compiled(x)
        result.sum().backward()
    torch.testing.assert_close(result, expected)
    assert told == 2 * eager


def test_hooks_leave_copies_pickles_and_the_model_as_they_were(told: Told) -> None:
    stack, x = Stack(1), torch.randn(TOKENS, HIDDEN)
    bare = copy.deepcopy(stack.layers[0].gate.weight)
    undo = watch_routers(lambda *_: told.append((-1, [])))
    file = io.BytesIO()
    torch.save(stack, file)
    copied = copy.deepcopy(stack)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    undo()
    told.clear()
    assert torch.equal(loaded(x), stack(x))
    assert torch.equal(copied(x), stack(x))
    assert (-1, []) not in told
    assert torch.equal(bare.weight, stack.layers[0].gate.weight.weight)


def test_undo_leaves_no_hook() -> None:
    known = router(Gate, lambda inputs, output: output[1])
    undo = watch_routers(lambda *_: None)
    stack = Stack()
    stack(torch.randn(TOKENS, HIDDEN))
    copied = copy.deepcopy(stack)
    undo()
    known()
    hooks = nn.modules.module._global_module_registration_hooks
    assert not hooks
    for model in (stack, copied):
        for module in model.modules():
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
    assert not annotate._routing_sinks


def test_an_error_never_reaches_the_model() -> None:
    failed: list[Exception] = []
    known = router(Gate, lambda inputs, output: output[5])
    undo = watch_routers(lambda *_: None, on_failure=failed.append)
    Stack(2)(torch.randn(TOKENS, HIDDEN))
    undo()
    known()
    assert [str(error)[:43] for error in failed] == [
        "the function of capture.router for Gate fai"
    ] * 2


def test_a_reader_that_returns_weights_is_told_what_it_returned() -> None:
    failed: list[str] = []
    known = router(Gate, lambda inputs, output: output[0], experts=EXPERTS)
    undo = watch_routers(lambda *_: None, on_failure=lambda e: failed.append(str(e)))
    Stack(1)(torch.randn(TOKENS, HIDDEN))
    undo()
    known()
    (said,) = failed
    assert "returned torch.float32 of shape [12, " in said
    assert said.endswith("return the ids")


@pytest.mark.parametrize(
    ("ids", "inputs", "k"),
    [
        (torch.arange(24).view(12, 2) % EXPERTS, (torch.ones(12, 5),), 2),
        (torch.zeros(24, dtype=torch.int64), (torch.ones(3, 4, 5),), 2),
        (torch.zeros(3, 2, dtype=torch.int64), (torch.ones(3, 2, 5),), 1),
        (torch.zeros(7, dtype=torch.int64), (torch.ones(3, 5),), 0),
        (torch.tensor([[0, 1], [1, 2]]), (), 2),
        (torch.tensor([[0, 1], [2, 2]]), (), 0),  # top-1 of two sequences
        (torch.arange(24), (), 0),
        (torch.empty(0, 2, dtype=torch.int64), (torch.ones(0, 5),), 0),
        (torch.zeros(1, 99, dtype=torch.int64), (torch.ones(1, 5),), 0),
    ],
)
def test_k_is_seen_in_shapes_or_is_unknown(
    ids: Tensor, inputs: tuple[Tensor, ...], k: int
) -> None:
    assert router_readers.experts_per_token(ids, inputs, EXPERTS) == k


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([[0, 3]], ""),
        ([[-1, 3]], ""),
        ([[0, 4], [6, 1]], "says experts=4: give experts=7, or more, or register"),
        ([[0, -2]], "expert -2 was chosen, but ids are from 0 on: give -1 for none"),
    ],
)
def test_an_id_of_no_expert_is_named(ids: list[list[int]], words: str) -> None:
    read = router_readers.reader_of_ids(lambda _, output: output, 4)
    decision = read(Gate(), (), torch.tensor(ids))
    assert decision is not None
    if not words:
        assert sum(demand_of(decision.demand, None)[0]) == sum(i >= 0 for i in ids[0])
        return
    with pytest.raises(ValueError, match=words):
        demand_of(decision.demand, None)


def test_gates_in_a_list_belong_to_what_holds_the_list(told: Told) -> None:
    mixture = Mixture(gates=2)
    mixture(torch.randn(TOKENS, HIDDEN))
    assert [layer for layer, _ in told] == [0, 0]


def test_a_program_that_reports_itself_is_not_told_twice(told: Told) -> None:
    mixture, x = Mixture(), torch.randn(TOKENS, HIDDEN)
    capture.routing(0, torch.ones(EXPERTS, dtype=torch.int64))
    mixture(x)
    assert told == []
    # our own routers belong to models that report
    FairscaleTop2Router(HIDDEN, EXPERTS)(torch.randn(TOKENS, HIDDEN))
    assert told == []


def test_nothing_is_told_of_fake_tensors(told: Told) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        Mixture()(torch.randn(TOKENS, HIDDEN))
    assert told == []


def test_selective_checkpointing_counts_as_without_us(told: Told) -> None:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    stack = Stack(1)
    x = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    save = [torch.ops.aten.addmm.default, torch.ops.aten.scatter_add_.default]
    y = checkpoint(
        stack.layers[0],
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(save),
    )
    y.sum().backward()
    assert [layer for layer, _ in told] == [0, 0]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("kind", "ids", "experts", "words"),
    [
        (3, len, None, "class or the class's full name"),
        ("Gate", len, None, "such as 'package.module.MyGate', but 'Gate'"),
        (Gate, "ids", None, "function of inputs and output"),
        (Gate, len, 0, "number of experts from 1 on"),
    ],
)
def test_registration_refuses(kind: Any, ids: Any, experts: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        router(kind, ids, experts=experts)


# ---- the frameworks' outputs -------------------------------------------------------


def as_if(name: str, **attributes: Any) -> nn.Module:
    """A module of a class of this full name, as a framework that is not here has it."""
    module, _, kind = name.rpartition(".")
    made = type(kind, (nn.Module,), {"__module__": module})()
    for key, value in attributes.items():
        setattr(made, key, value)
    return made


IDS = torch.tensor([[0, 1], [1, 3], [3, 0], [1, 0]])
LOGITS = torch.zeros(4, 4).scatter(1, IDS, torch.tensor([[3.0, 2.0]] * 4))
MASK = torch.zeros(4, 4, dtype=torch.bool).scatter(1, IDS, True)
SENT = MASK & (torch.arange(4)[:, None] < 3)  # the last token is over capacity
LEFT = torch.tensor([[0, 1, 3, -1], [1, 3, 0, -1]])
PLACES = SENT[..., None].expand(4, 4, 2) & torch.tensor([True, False])
ALL, KEPT = [3, 3, 0, 2], [2, 2, 0, 2]
NONE = None
LATER = NONE_BEFORE  # the ids are those of all tokens

OUTPUTS: dict[str, tuple[str, dict[str, Any], Any, list[int], list[int] | None]] = {
    "megatron": (
        "megatron.core.transformer.moe.router.TopKRouter",
        {},
        (LOGITS.softmax(1), MASK),
        ALL,
        NONE,
    ),
    "megatron padded": (
        "megatron.core.transformer.moe.router.TopKRouter",
        {"config": type("C", (), {"moe_pad_expert_input_to_capacity": True})()},
        (LOGITS * MASK, torch.ones(4, 4, dtype=torch.bool)),
        ALL,
        NONE,
    ),
    "deepspeed": (
        "deepspeed.moe.sharded_moe.TopKGate",
        {"k": 2},
        (0.0, 2, 4, LEFT.int(), LEFT.int(), LOGITS, torch.tensor(ALL)),
        ALL,
        [1, 1, 0, 0],
    ),
    "fairscale": (
        "fairscale.nn.moe.top2gate.Top2Gate",
        {},
        (0.0, PLACES.float(), PLACES),
        KEPT,
        NONE,
    ),
    "torchtitan": (
        "torchtitan.models.common.moe.TokenChoiceTopKRouter",
        {"num_experts": 4},
        (LOGITS, IDS[None], LOGITS),
        ALL,
        NONE,
    ),
    "megablocks": (
        "megablocks.layers.router.LearnedRouter",
        {},
        (LOGITS, LOGITS, LOGITS, IDS),
        ALL,
        NONE,
    ),
    "fastmoe": (
        "fmoe.gates.gshard_gate.GShardGate",
        {"tot_expert": 4},
        (LEFT.T.reshape(-1), LOGITS),
        KEPT,
        NONE,
    ),
    "tutel": ("tutel.gates.top.LinearTopKGate", {"top_k": 2}, LOGITS, ALL, LATER),
    "remote code": (
        "transformers_modules.deepseek.modeling_deepseek.MoEGate",
        {"n_routed_experts": 4},
        (IDS, LOGITS, None),
        ALL,
        NONE,
    ),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_each_frameworks_output_is_read(case: str) -> None:
    name, attributes, output, demand, dropped = OUTPUTS[case]
    module = as_if(name, **attributes)
    reader = router_readers.reader_for(type(module))
    assert reader is not None
    told = reader(module, (), output)
    assert told is not None
    assert told.demand.dtype == torch.int64
    assert told.demand.tolist() == demand
    assert (None if told.dropped is None else told.dropped.tolist()) == dropped
    # the experts of each token, without copies that a framework dropped
    assert (told.chosen is None) == (case == "fastmoe")
    if told.chosen is not None:
        ids = choice_ids(TokenSample(9, 0).take(told.chosen()), 4)
        lost = dropped if isinstance(dropped, list) else [0, 0, 0, 0]
        kept = np.array(demand) - np.array(lost)
        assert np.bincount(ids[ids >= 0], minlength=4).tolist() == kept.tolist()


@pytest.mark.parametrize(
    ("name", "attributes", "output", "words"),
    [
        (
            "tutel.gates.top.LinearTopKGate",
            {"top_k": 2, "gate_noise": 1.0},
            LOGITS,
            "after its gate",
        ),
        (
            "deepspeed.moe.sharded_moe.TopKGate",
            {"k": 1},
            (0.0, PLACES.float(), PLACES, torch.tensor(ALL)),
            "from release 0.16 on",
        ),
    ],
)
def test_what_cannot_be_known_is_not_told(
    name: str, attributes: dict[str, Any], output: Any, words: str
) -> None:
    module = as_if(name, **attributes)
    reader = router_readers.reader_for(type(module))
    assert reader is not None
    with pytest.raises(ValueError, match=words):
        reader(module, (), output)


def test_subclasses_are_routers_and_other_modules_are_not() -> None:
    class Mine(Top2Gate):
        pass

    assert router_readers.reader_for(Mine) is router_readers.reader_for(Top2Gate)
    for kind in (nn.Linear, nn.Module, Mixture, Gate):
        assert router_readers.reader_for(kind) is None


def test_every_router_of_transformers_is_known() -> None:
    """But those that are no router over experts, or say less than the choice."""
    no_router = {
        "GraniteDoclingDensityRouter",  # of image tiles
        "DbrxRouter",  # gives logits; its layer chooses by norm
        "InklingTopkRouter",
    }
    models = Path(find_spec("transformers").origin).parent / "models"  # type: ignore[union-attr, arg-type]
    found = unknown = 0
    for file in models.glob("*/modeling_*.py"):
        for name in re.findall(r"^class (\w*Router)\(", file.read_text(), re.M):
            kind = type(name, (nn.Module,), {})
            kind.__module__ = f"transformers.models.{file.parent.name}.{file.stem}"
            found += 1
            if router_readers.reader_for(kind) is None:
                unknown += 1
                assert name in no_router, name
    assert found > 60
    assert unknown <= len(no_router)


@pytest.mark.slow
def test_transformers_routers_return_what_the_table_says() -> None:
    """The third value that ``forward`` returns is the chosen experts."""
    models = Path(find_spec("transformers").origin).parent / "models"  # type: ignore[union-attr, arg-type]
    read = 0
    for file in models.glob("*/modeling_*.py"):
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            kind = type(node.name, (nn.Module,), {})
            kind.__module__ = f"transformers.models.{file.parent.name}.{file.stem}"
            if router_readers.reader_for(kind) is not router_readers.LOGITS_WEIGHTS_IDS:
                continue
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "forward":
                    (returned,) = [
                        r.value for r in ast.walk(method) if isinstance(r, ast.Return)
                    ]
                    assert isinstance(returned, ast.Tuple)
                    third = ast.unparse(returned.elts[2])
                    assert "ind" in third or "expert" in third, (node.name, third)
                    read += 1
    assert read > 50


def qwen() -> nn.Module:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=16,
            hidden_size=16,
            moe_intermediate_size=8,
            num_hidden_layers=3,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            mlp_only_layers=[1],
        )
    )


def switch() -> nn.Module:
    from transformers import (
        SwitchTransformersConfig,
        SwitchTransformersForConditionalGeneration,
    )

    return SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(
            vocab_size=16,
            d_model=16,
            d_ff=8,
            d_kv=8,
            num_heads=2,
            num_layers=4,
            num_decoder_layers=4,
            num_sparse_encoder_layers=2,
            num_sparse_decoder_layers=2,
            num_experts=4,
            expert_capacity=3,
            decoder_start_token_id=0,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(qwen, [0, 2], marks=pytest.mark.slow),
        (switch, [1, 3, 5, 7]),
    ],
)
def test_layers_are_those_of_the_model(
    make: Callable[[], nn.Module], expected: list[int]
) -> None:
    """A dense layer counts, and a decoder's layers follow the encoder's."""
    heard: list[tuple[int, int, Any]] = []
    model = make()
    undo = watch_routers(
        lambda layer, demand, dropped, group: heard.append(
            (layer, int(demand.sum()), dropped)
        )
    )
    ids = torch.randint(0, 16, (2, 8))
    if make is switch:
        model(input_ids=ids, decoder_input_ids=ids)
        assert [n <= 16 for _, n, _ in heard] == [True] * 4  # after capacity
    else:
        model(input_ids=ids)
        assert [(n, d) for _, n, d in heard] == [(32, NONE_BEFORE)] * 2
    undo()
    assert [layer for layer, _, _ in heard] == expected


def test_positions_come_from_attributes_paths_or_the_order_of_calls() -> None:
    told = Gate()
    told.layer_number = 4  # type: ignore[assignment]
    chunk = nn.ModuleList([nn.ModuleDict({"layers": nn.ModuleList([Gate(), Gate()])})])
    plain = Gate()
    modules = [*told.modules(), *chunk.modules(), *plain.modules()]
    held = layer_index.parents_of(modules)
    positions = [
        layer_index.position_of(module, held)
        for module in (told, *chunk[0]["layers"], plain)  # type: ignore[index]
    ]
    assert [p and p.number for p in positions] == [3, 0, 1, None]
    numbering = layer_index.LayerNumbering()
    assert numbering.number(positions) == [3, 0, 1, None]
    assert numbering.next() == 2
    assert numbering.next() == 4


class EpRouter(Gate):
    """What DeepSpeed's AutoEP routes with."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, ids = self.weight(x).topk(2, -1)
        return scores.softmax(-1), ids


EpRouter.__module__, EpRouter.__qualname__ = (
    "deepspeed.moe.ep_router",
    "TokenChoiceTopKRouter",
)


class EpLayer(nn.Module):
    """AutoEP's layer; its router has a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.router = EpRouter()
        self.gate = self.router

    def forward(self, x: Tensor) -> Tensor:
        self.router(x.reshape(-1, x.shape[-1]))
        return x


def test_layers_that_are_replaced_in_a_model_keep_its_numbers() -> None:
    """AutoEP replaces the blocks of a model that was built while hooks were there."""
    heard: list[int] = []
    undo = watch_routers(lambda layer, *_: heard.append(layer))
    try:
        model = qwen()
        for layer in model.model.layers:
            if hasattr(layer.mlp, "experts"):
                layer.mlp = EpLayer()
        layers: list[Any] = [m for m in model.modules() if isinstance(m, EpLayer)]
        for layer in layers:
            layer.router.weight = nn.Linear(model.config.hidden_size, EXPERTS)
        model(input_ids=torch.randint(0, 16, (2, 8)))
    finally:
        undo()
    assert heard == [0, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_counting_waits_for_no_device() -> None:
    x = torch.randn(TOKENS, HIDDEN, device="cuda")
    mixture = Mixture().cuda()
    heard: list[Tensor] = []
    known = router(Gate, lambda inputs, output: output[1])
    undo = watch_routers(lambda _, demand, *__: heard.append(demand))
    mixture.gate(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        mixture.gate(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mixture.gate(x)
    undo()
    known()
    assert [demand.device.type for demand in heard] == ["cuda", "cuda"]
    assert int(heard[0].sum()) == 2 * TOKENS
