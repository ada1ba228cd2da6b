"""Models that are offloaded by accelerate, sharded over two processes, compiled, exported or scripted."""

from __future__ import annotations

import datetime
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import whence

from .case import Case, Pair

IDS = torch.randint(3, 90, (1, 6), generator=torch.Generator().manual_seed(1))
SECONDS = 300
PARTS = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "disk",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}


def whole() -> nn.Module:
    """Return a small seeded decoder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 90, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()
    return model


class Logits(nn.Module):
    """The decoder as a function of ids alone, for torch.export and TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.model = whole()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the last position."""
        logits: torch.Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits[:, -1]


def explained(model: nn.Module) -> Callable[[str], Any]:
    """Return the function that explains the fixed input by a method."""
    return lambda method: whence.explain(model, {"input_ids": IDS}, method)


def offloaded(offload: Callable[[nn.Module, str], nn.Module]) -> Callable[[], Pair]:
    """Return the builder of a pair whose second model is offloaded."""
    return lambda: Pair(explained(whole()), explained(offload(whole(), tempfile.mkdtemp())))


def in_memory(model: nn.Module, folder: str) -> nn.Module:
    """Offload all weights to memory."""
    from accelerate import cpu_offload

    cpu_offload(model, execution_device=torch.device("cpu"))
    return model


def on_disk(model: nn.Module, folder: str) -> nn.Module:
    """Offload all weights to disk."""
    from accelerate import disk_offload

    disk_offload(model, folder, execution_device=torch.device("cpu"))
    return model


def dispatched(model: nn.Module, folder: str) -> nn.Module:
    """Offload some modules to disk."""
    from accelerate import dispatch_model

    placed: nn.Module = dispatch_model(model, PARTS, main_device="cpu", offload_dir=folder)
    return placed


def loaded(device_map: dict[str, str]) -> Callable[[nn.Module, str], nn.Module]:
    """Return what saves a model and loads it with a device map."""

    def load(model: Any, folder: str) -> nn.Module:
        model.save_pretrained(f"{folder}/saved")
        placed: nn.Module = type(model).from_pretrained(
            f"{folder}/saved", device_map=device_map, offload_folder=f"{folder}/offloaded"
        )
        return placed.eval()

    return load


def wrapped(wrap: Callable[[nn.Module], Any]) -> Callable[[], Pair]:
    """Return the builder of a pair whose second model is a function of ids that was compiled, exported or scripted."""
    return lambda: Pair(explained(Logits().eval()), explained(wrap(Logits().eval())))


def scripted(model: nn.Module) -> Any:
    """Return a model as TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model, (IDS,))


def fsdp2(model: Any) -> nn.Module:
    """Shard a model by fully_shard."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model  # type: ignore[no-any-return]  # a model of transformers


def fsdp1(model: nn.Module) -> nn.Module:
    """Wrap a model in FullyShardedDataParallel."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def ddp(model: nn.Module) -> nn.Module:
    """Wrap a model in DistributedDataParallel."""
    return nn.parallel.DistributedDataParallel(model)


def tensor_parallel(model: Any) -> nn.Module:
    """Split the heads and features of a model over two processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    columns, rows = ColwiseParallel(), RowwiseParallel()
    plan = {f"self_attn.{name}": columns for name in ("q_proj", "k_proj", "v_proj")} | {"self_attn.o_proj": rows}
    plan |= {"mlp.gate_proj": columns, "mlp.up_proj": columns, "mlp.down_proj": rows}
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
    return model  # type: ignore[no-any-return]  # as above


def work(rank: int, folder: str, shard: Callable[[nn.Module], nn.Module]) -> None:
    """Explain a sharded model by every method in one of two processes, and write scores or error sentences."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    store, most = f"file://{folder}/store", datetime.timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=most)
    explain, found = explained(shard(whole())), {}
    for method in whence.list_methods():
        try:
            found[method] = explain(method).scores
        except whence.WhenceError as error:
            found[method] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def shared(shard: Callable[[nn.Module], nn.Module]) -> Callable[[], Pair]:
    """Return the builder of a pair whose second model is shared by two processes, which end by themselves."""

    def build() -> Pair:
        folder = tempfile.mkdtemp()
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=work, args=(rank, folder, shard), daemon=True) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(SECONDS)
        for process in ranks:
            if process.is_alive():
                process.kill()
        found = [torch.load(path) for path in sorted(Path(folder).glob("*.pt"))]
        if len(found) < 2:
            raise RuntimeError(f"The processes ended with {[process.exitcode for process in ranks]}.")
        return Pair(explained(whole()), lambda method: _same(method, *(one[method] for one in found)))

    return build


def _same(method: str, first: Any, second: Any) -> SimpleNamespace:
    """Return what both processes found, or raise the error of both."""
    if isinstance(first, str) and first == second:
        raise whence.ModelError(first)
    if isinstance(first, str) or isinstance(second, str) or not torch.allclose(first, second):
        raise RuntimeError(f"The two processes disagree on '{method}': {first}, {second}.")
    return SimpleNamespace(scores=first)


CASES = [
    Case("cpu_offload", "accelerate", offloaded(in_memory)),
    Case("disk_offload", "accelerate", offloaded(on_disk)),
    Case("dispatch_model, some modules on disk", "accelerate", offloaded(dispatched)),
    Case('from_pretrained, device_map={"": "cpu"}', "accelerate", offloaded(loaded({"": "cpu"}))),
    Case('from_pretrained, device_map={"": "disk"}', "accelerate", offloaded(loaded({"": "disk"}))),
    Case("from_pretrained, some modules on disk", "accelerate", offloaded(loaded(PARTS))),
    Case("DataParallel", "torch", lambda: Pair(explained(whole()), explained(nn.DataParallel(whole())))),
    Case("DistributedDataParallel, two processes", "torch", shared(ddp)),
    Case("FSDP1, two processes", "torch", shared(fsdp1)),
    Case("FSDP2 (fully_shard), two processes", "torch", shared(fsdp2)),
    Case("tensor parallel (parallelize_module), two processes", "torch", shared(tensor_parallel)),
    Case("torch.compile", "torch", wrapped(torch.compile)),
    Case("torch.export", "torch", wrapped(lambda model: torch.export.export(model, (), {"input_ids": IDS}).module())),
    Case("torch.jit.trace", "torch", wrapped(scripted)),
]
