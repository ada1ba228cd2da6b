"""Tensor parallelism: weights of which each process holds a slice, and computes with that slice alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from torch import Tensor, nn

from ..errors import ModelError

#: the package whose hooks gather and free the weights of FSDP2
FSDP = "torch.distributed.fsdp"


def local(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor: of a ``DTensor``, its slice or copy; any other tensor itself."""
    library = sys.modules.get("torch.distributed.tensor")  # without it there is no such tensor
    return tensor._local_tensor if library is not None and isinstance(tensor, library.DTensor) else tensor


def is_split(tensor: Tensor) -> bool:
    """Return whether each of several processes holds a slice of a tensor (a sharded ``DTensor``)."""
    library = sys.modules.get("torch.distributed.tensor")  # without it there is no such tensor
    if library is None or not isinstance(tensor, library.DTensor):
        return False
    each = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    return any(size > 1 and not placement.is_replicate() for placement, size in each)


def refusal(name: str, tensor: Tensor) -> ModelError:
    """Return the error for what needs all attention heads of a model that is split over processes.

    Args:
        name: of a weight that is split.
        tensor: the weight.
    """
    processes = tensor.device_mesh.size()  # type: ignore[attr-defined]  # of a DTensor
    return ModelError(
        f"The model is split over {processes} processes (tensor parallelism): each holds a slice of '{name}', and sees "
        "only the attention heads and features that it computes itself. Attention maps, heads and relevance inside "
        "blocks would be those of one process. Use a method that is read at the input (conservative-lrp, attn-lrp, "
        "gradient-x-input, integrated-gradients, occlusion), or load the whole model in one process."
    )


@contextlib.contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Gather the weights that FSDP shards until the block ends: inside, the model runs as one that is not sharded.

    FSDP's own hooks, which gather and free weights for each forward and backward pass, are off inside.
    """
    library = sys.modules.get(FSDP)  # without it nothing is sharded
    modules = [] if library is None else list(model.modules())
    if any(isinstance(m, library.FullyShardedDataParallel) for m in modules):  # type: ignore[union-attr]  # no modules
        raise ModelError(
            "The model is wrapped in FullyShardedDataParallel (FSDP1), which checks and replaces its flat parameters "
            "with torch operations during each forward pass, so that it cannot be traced. Shard it with fully_shard "
            "(FSDP2), or load the whole model from its full state dict in one process."
        )
    sharded = [m for m in modules if isinstance(m, library.FSDPModule)]  # type: ignore[union-attr]  # as above
    if any(m._get_fsdp_state()._mp_policy.param_dtype is not None for m in sharded):
        raise ModelError(
            "The model is sharded by fully_shard with a mixed-precision policy, which casts weights and inputs in "
            "hooks that an explanation runs without. Shard it without `mp_policy`, in the precision to be explained."
        )
    found = [(hooks, dict(hooks)) for m in sharded for hooks in (m._forward_pre_hooks, m._forward_hooks)]
    try:
        for module in sharded:
            module.unshard()
        for hooks, before in found:
            for key in [k for k, h in before.items() if getattr(h, "__module__", "").startswith(FSDP)]:
                del hooks[key]
        yield
    finally:
        for hooks, before in found:
            hooks.clear()
            hooks.update(before)
        for module in sharded:
            module.reshard()


def refuse_split_table(tensors: list[Tensor]) -> None:
    """Refuse an embedding of which each process holds a slice: ids are wrapped for it, and not followed.

    Args:
        tensors: ids and the table.
    """
    split = next((t for t in tensors if is_split(t)), None)
    if split is not None:
        raise ModelError(
            f"The model's embedding table is split over {split.device_mesh.size()} processes (tensor parallelism), so "  # type: ignore[attr-defined]  # of a DTensor
            "that its rows are not followed. Give the model embedded inputs (inputs_embeds), or leave the embedding "
            "out of the parallel plan."
        )


def refuse_split_tokens(tensor: Tensor) -> None:
    """Refuse a tensor ``[batch, tokens, features]`` of which each process holds some tokens (sequence parallelism)."""
    spec = getattr(tensor.grad_fn, "dtensor_spec", None)  # where a DTensor becomes a plain tensor, what it was
    if spec is None or len(spec.shape) != 3:
        return
    each = zip(spec.placements, spec.mesh.shape, strict=True)
    if any(size > 1 and placement.is_shard(dim=1) for placement, size in each):
        raise ModelError(
            f"Between its layers, each of {spec.mesh.size()} processes holds the features of some tokens only "
            "(sequence parallelism), so that one process has no scores for the others. Leave SequenceParallel out of "
            "the parallel plan, or load the whole model in one process."
        )
