"""Tensor parallelism: two processes on this machine, each with its own heads; explained as one, or refused."""

from __future__ import annotations

import datetime
import json
import multiprocessing

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence

pytest.importorskip("torch.distributed.tensor.parallel")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch was built without gloo", allow_module_level=True)

WIDTH, HEADS, SECONDS = 16, 4, 60
INPUT = ["gradient-x-input", "conservative-lrp", "attn-lrp", "pa-lrp", "res-lrp", "saliency", "occlusion"]
MAPS = ["attention", "rollout", "generic-attention", "transformer-attribution", "lrp", "legrad", "libragrad"]
IDS = torch.randint(0, 30, (2, 6), generator=torch.Generator().manual_seed(1))
FLOATS = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def rotated(x):
    """Queries or keys, rotated by their position."""
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.1, 1.0, 0.1], dtype=x.dtype)
    turned = torch.cat([-x[..., 2:], x[..., :2]], -1)
    return x * angles.cos() + turned * angles.sin()


class Block(nn.Module):
    def __init__(self, rotary=False):
        super().__init__()
        self.rotary = rotary
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x):
        y = self.norms[0](x)
        q, k, v = (layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.rotary:
            q, k = rotated(q), rotated(k)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, rotary=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(30, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks = nn.ModuleList(Block(rotary) for _ in range(2))
        self.project, self.gather = nn.Linear(4, WIDTH), nn.Identity()

    def forward(self, given):
        x = self.project(given) if given.is_floating_point() else self.embed(given)
        for block in self.blocks:
            x = block(x)
        return self.head(self.gather(x).mean(1))


def prepared(rotary=False):
    generator = torch.Generator().manual_seed(0)
    model = Model(rotary).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def split(mesh, embedding=False, tokens=False, rotary=False):
    """Return the model, its heads and hidden features split over two processes."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    model, layout = prepared(rotary), Shard(1) if tokens else Replicate()
    columns, rows = ColwiseParallel(input_layouts=layout), RowwiseParallel(output_layouts=layout)
    plan = dict.fromkeys(("q", "k", "v", "gate", "up"), columns) | {"out": rows, "down": rows}
    if tokens:
        plan |= {"norms.0": SequenceParallel(), "norms.1": SequenceParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    if embedding:
        parallelize_module(model, mesh, {"embed": RowwiseParallel(input_layouts=Replicate())})
    if tokens:
        end = PrepareModuleInput(input_layouts=layout, desired_input_layouts=Replicate(), use_local_output=True)
        begin = RowwiseParallel(input_layouts=Replicate(), output_layouts=layout)
        parallelize_module(model, mesh, {"project": begin, "gather": end})
    return model


def explained(model, method, inputs=IDS, **options):
    """Return scores and what else an explanation has, or the error's name and words."""
    try:
        e = whence.explain(model, inputs, method, 1, **options)
    except whence.EngineError:
        raise
    except whence.WhenceError as error:
        return [type(error).__name__, str(error)]
    return [e.scores.tolist(), e.heads is None, e.ledger is None]


def work(rank, directory):
    """Explain the split model in one of two processes, and write down what came of it."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/store",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    mesh = init_device_mesh("cpu", (2,))
    model = split(mesh)
    found = {method: explained(model, method) for method in [*INPUT, *MAPS]}
    found["rotary"] = [explained(split(mesh, rotary=True), method) for method in ("pa-lrp", "attn-lrp")]
    found["checkpoints"] = explained(model, "conservative-lrp", checkpoints=2)
    found["inside"] = explained(model, "conservative-lrp", inside=True)
    found["embedding"] = explained(split(mesh, embedding=True), "conservative-lrp")
    sequence = split(mesh, tokens=True)
    with torch.no_grad():
        assert torch.allclose(sequence(FLOATS), prepared()(FLOATS))
    found["tokens"] = explained(sequence, "conservative-lrp", FLOATS)
    found["table by maps"] = explained(split(mesh, embedding=True), "rollout")
    try:
        whence.without(model, IDS, heads=[(0, 1)])
    except whence.EngineError:
        raise
    except whence.WhenceError as error:
        found["without"] = [type(error).__name__, str(error)]
    with open(f"{directory}/{rank}.json", "w") as file:
        json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of the two processes found, by name."""
    directory = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=work, args=(rank, str(directory)), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(SECONDS)
    for rank in ranks:
        if rank.is_alive():
            rank.kill()
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("method", [*INPUT, "checkpoints"])
def test_scores_at_the_input_are_those_of_the_whole_model(found, method):
    name = "conservative-lrp" if method == "checkpoints" else method
    expected = whence.explain(prepared(), IDS, name, 1).scores
    for process in found:
        scores, no_heads, no_ledger = process[method]
        torch.testing.assert_close(torch.tensor(scores, dtype=expected.dtype), expected, rtol=1e-9, atol=1e-12)
        assert no_heads  # those of one process
        assert no_ledger


@pytest.mark.parametrize("method", [*MAPS, "inside", "without", "table by maps"])
def test_what_reads_heads_is_refused(found, method):
    for process in found:
        kind, words = process[method]
        assert kind == "ModelError"
        weight = "embed.weight" if method == "table by maps" else "blocks.0.q.weight"
        assert f"split over 2 processes (tensor parallelism): each holds a slice of '{weight}'" in words


def test_positions_inside_the_heads_of_one_process_are_refused(found):
    expected = whence.explain(prepared(rotary=True), IDS, "attn-lrp", 1).scores
    for process in found:
        (kind, words), (scores, *_) = process["rotary"]
        assert kind == "ModelError"
        assert "positions are encoded inside attention" in words
        torch.testing.assert_close(torch.tensor(scores, dtype=expected.dtype), expected, rtol=1e-9, atol=1e-12)


def test_an_embedding_that_is_split_is_refused(found):
    for process in found:
        kind, words = process["embedding"]
        assert kind == "ModelError"
        assert "embedding table is split over 2 processes" in words
        assert "inputs_embeds" in words


def test_tokens_that_are_split_are_refused(found):
    for process in found:
        kind, words = process["tokens"]
        assert kind == "ModelError"
        assert "each of 2 processes holds the features of some tokens only (sequence parallelism)" in words
