"""What a model is given: the user's inputs checked, and cut into samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._utils.offloading import device_of
from ..errors import InputError, ModelError, NumericalError
from ..targets.specs import At, Contrast

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]


def prepare(model: nn.Module, inputs: Inputs) -> tuple[list[Any], dict[str, Any], int]:
    """Positional and keyword arguments, and the batch size."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    else:
        args = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    tensors = {**{str(i): a for i, a in enumerate(args)}, **kwargs}
    tensors = {name: t for name, t in tensors.items() if isinstance(t, Tensor)}
    if not tensors:
        raise InputError(
            f"The inputs ({type(inputs).__name__}) hold no tensor. Pass what the model takes: a dict of tensors for "
            "model(**inputs), or a tensor or tuple for model(*inputs)."
        )
    _check_values(tensors)
    first, main = next(iter(tensors.items()))
    if main.dim() == 0 or main.numel() == 0:
        raise InputError(f"The input '{first}' is empty (shape {list(main.shape)}): there is nothing to explain.")
    batch = main.shape[0]
    _check_lengths(tensors)
    _check_devices(model, tensors)
    for name, t in tensors.items():
        if t.is_floating_point() and not name.endswith("mask") and not bool(torch.isfinite(t).all()):
            where = torch.nonzero(~torch.isfinite(t))[0].tolist()
            raise NumericalError(
                f"The input '{name}' has a NaN or an infinity at {where}. Remove it and explain again."
            )
    return args, kwargs, batch


def _check_values(tensors: Mapping[str, Tensor]) -> None:
    for name, t in tensors.items():
        if t.is_nested:
            raise InputError(
                f"The input '{name}' is a nested tensor, in which Whence does not follow samples and tokens. Pad it to "
                "one length (torch.nested.to_padded_tensor) and give a mask, or explain one sample at a time."
            )
        if t.is_meta:
            raise InputError(
                f"The input '{name}' is on the device 'meta': it has a shape and no values. Explain tensors with "
                "values, on the device of a model with weights."
            )


def _check_lengths(tensors: Mapping[str, Tensor]) -> None:
    ids = tensors.get("input_ids")
    if ids is None:
        return
    for name in ("attention_mask", "token_type_ids", "position_ids"):
        t = tensors.get(name)
        if t is None or t.dim() != 2 or t.shape == ids.shape or (name == "position_ids" and len(t) == 1):
            continue
        raise InputError(
            f"'{name}' has shape {list(t.shape)} but 'input_ids' has {list(ids.shape)}: they must agree. "
            "Pad all samples to one length."
        )


def _check_devices(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    there = device_of(model)
    if there is not None and there.type == "meta":
        raise ModelError(
            "The model's weights are on the meta device: they have shapes and no values. Load them "
            "(from_pretrained, or model.to_empty(device='cpu') and model.load_state_dict) and explain again."
        )
    for name, t in tensors.items():
        if there is not None and t.device != there:
            raise InputError(
                f"The model is on {there} but the input '{name}' is on {t.device}. Move one of them: "
                f"inputs.to('{there}') or model.to('{t.device}')."
            )


def padding_of(kwargs: Mapping[str, Any]) -> Tensor | None:
    """``[batch, tokens]``, true at padding, from the masks that models are given."""
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask == 0
    mask = kwargs.get("src_key_padding_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.dtype == torch.bool:
        return mask
    return None


def sample_of(inputs: tuple[list[Any], dict[str, Any]], batch: int, i: int) -> tuple[list[Any], dict[str, Any]]:
    """The inputs of one sample."""

    def cut(value: Any) -> Any:
        return value[i : i + 1] if isinstance(value, Tensor) and value.dim() and len(value) == batch else value

    return [cut(v) for v in inputs[0]], {k: cut(v) for k, v in inputs[1].items()}


def repeated(inputs: tuple[list[Any], dict[str, Any]], batch: int, times: int) -> tuple[list[Any], dict[str, Any]]:
    """The inputs of a batch several times over, one copy after the other."""

    def copied(value: Any) -> Any:
        own = isinstance(value, Tensor) and value.dim() and len(value) == batch
        return torch.cat([value] * times) if own and times > 1 else value

    return [copied(v) for v in inputs[0]], {k: copied(v) for k, v in inputs[1].items()}


def each(target: Any, batch: int) -> list[Any]:
    """A target per sample."""
    if isinstance(target, At):
        place = target.position
        places = [place] * batch if isinstance(place, int | str) else list(place)
        inner = [None] * batch if target.target is None else each(target.target, batch)
        return [At(p if isinstance(p, str) else [p], t) for p, t in zip(places, inner, strict=True)]
    if isinstance(target, Contrast):
        pairs = zip(each(target.target, batch), each(target.other, batch), strict=True)
        return [Contrast(a, b) for a, b in pairs]
    if target is None or callable(target):
        return [target] * batch
    items = target.tolist() if isinstance(target, Tensor) else target
    return [items] * batch if isinstance(items, int | str) else [[item] for item in items]
