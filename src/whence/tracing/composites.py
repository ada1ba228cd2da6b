"""Composite torch functions, decomposed into primitive operations that have a kind."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor


def _glu(input: Tensor, dim: int = -1) -> Tensor:
    a, b = input.chunk(2, dim=dim)
    return a * torch.sigmoid(b)


def _baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus_product(input, torch.bmm(batch1, batch2), beta, alpha)


def _plus_product(input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """``beta input + alpha product``; with a ``beta`` of 0, ``input`` is not read: it may be uninitialised memory."""
    product = product if alpha == 1 else product * alpha
    if beta == 0 or not (input.requires_grad or input.is_meta or bool(input.any())):
        return product
    return product + (input if beta == 1 else input * beta)


def _addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return input + (tensor1 * tensor2 if value == 1 else tensor1 * tensor2 * value)


def _addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return input + (tensor1 / tensor2 if value == 1 else tensor1 / tensor2 * value)


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus_product(input, torch.matmul(mat1, mat2), beta, alpha)


def _lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    start = input.requires_grad or input.is_meta or bool(input.any())
    moved: Tensor = input + (end - input) * weight if start else (end * weight).expand(input.shape)
    return moved


def _index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    added = torch.zeros_like(input, requires_grad=False).index_add(dim, index, source)
    return input + (added if alpha == 1 else added * alpha)


def _native_layer_norm(input: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    dims = list(range(-len(normalized_shape), 0))
    deviation = torch.rsqrt(torch.var(input, dims, correction=0, keepdim=True) + eps)
    return F.layer_norm(input, normalized_shape, weight, bias, eps), torch.mean(input, dims, keepdim=True), deviation


def _var_mean(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    return torch.var(input, *args, **kwargs), _mean_beside(input, args, kwargs)


def _std_mean(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    return torch.std(input, *args, **kwargs), _mean_beside(input, args, kwargs)


def _mean_beside(input: Tensor, args: Any, kwargs: dict[str, Any]) -> Tensor:
    dim = args[0] if args and not isinstance(args[0], bool) else kwargs.get("dim")
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    return torch.mean(input) if dim is None else torch.mean(input, dim, keepdim=keepdim)


def _vecdot(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    return torch.sum(input * other, dim)


def _rsub(input: Tensor, other: Any) -> Tensor:
    return torch.add(-input, other)


def _rdiv(input: Tensor, other: Any) -> Tensor:
    inverse = torch.reciprocal(input)
    return torch.mul(inverse, other) if isinstance(other, Tensor) or other != 1 else inverse


def _rmatmul(input: Tensor, other: Tensor) -> Tensor:
    return torch.matmul(other, input)


def _sliced(input: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    return input[(slice(None),) * (dim % input.dim()) + (slice(start, end, step),)]


def _indexed(input: Tensor, indices: Any) -> Tensor:
    return input[tuple(slice(None) if index is None else index for index in indices)]


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Tensor:
    name = f"conv{'_transpose' if transposed else ''}{weight.dim() - 2}d"
    given = (output_padding, groups, dilation) if transposed else (dilation, groups)
    convolved: Tensor = getattr(F, name)(input, weight, bias, stride, padding, *given)
    return convolved


def _multi_dot(*tensors: Any) -> Tensor:
    listed = tensors[0] if isinstance(tensors[0], tuple | list) else tensors
    made: Tensor = functools.reduce(torch.matmul, listed)
    return made


def _outer(input: Tensor, vec2: Tensor) -> Tensor:
    return input[:, None] * vec2


def _addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus_product(input, torch.bmm(batch1, batch2).sum(0), beta, alpha)


def _square(input: Tensor) -> Tensor:
    return torch.pow(input, 2)


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    x = input.reshape(input.shape[0], num_groups, -1)
    x = x - x.mean(-1, keepdim=True)
    x = (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)).reshape(input.shape)
    shape = (1, -1) + (1,) * (input.dim() - 2)
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def _native_group_norm(
    input: Tensor, weight: Any, bias: Any, samples: int, channels: int, space: int, groups: int, eps: float
) -> Any:
    x = input.detach().reshape(samples, groups, -1)
    deviation = torch.rsqrt(torch.var(x, -1, correction=0) + eps)
    return _group_norm(input, groups, weight, bias, eps), x.mean(-1), deviation


def _heaviside(input: Tensor, values: Tensor) -> Tensor:
    return torch.where(input == 0, values, (input > 0).to(input.dtype))


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    n1 = torch.norm(x1, dim=dim, keepdim=True).clamp_min(eps)
    n2 = torch.norm(x2, dim=dim, keepdim=True).clamp_min(eps)
    return torch.sum((x1 / n1) * (x2 / n2), dim)


def _fftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The Fourier transform of real numbers as what it is, products with constant matrices."""
    dims = range(input.dim() - (input.dim() if s is None else len(s)), input.dim()) if dim is None else dim
    real, imaginary = (input.real, input.imag) if input.is_complex() else (input, None)
    for i, d in enumerate(dims):
        n = input.shape[d] if s is None else s[i]
        k = torch.arange(n, device=input.device, dtype=torch.float64)
        angle = -2 * torch.pi / n * torch.outer(k, k)[: input.shape[d]]
        scale = {"ortho": n**-0.5, "forward": 1 / n}.get(norm or "", 1.0)
        cos, sin = ((scale * f(angle)).to(real.dtype) for f in (torch.cos, torch.sin))
        x, y = (None if t is None else t.transpose(d, -1)[..., :n] for t in (real, imaginary))
        parts = (x @ cos, x @ sin) if y is None else (x @ cos - y @ sin, x @ sin + y @ cos)
        real, imaginary = (t.transpose(d, -1) for t in parts)
    return real if imaginary is None else torch.complex(real, imaginary)


def _shifted(input: Tensor, dim: Any = None, sign: int = 1) -> Tensor:
    dims = range(input.dim()) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    return torch.roll(input, [sign * (input.shape[d] // 2) for d in dims], tuple(dims))


def _fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, axis: int = -1) -> Tensor:
    return _fftn(input, None if n is None else (n,), (dim if axis == -1 else axis,), norm)


#: Composite operations, decomposed into primitive operations that have a kind.
COMPOSITE: dict[str, Callable[..., Any]] = {
    "glu": _glu, "baddbmm": _baddbmm, "addcmul": _addcmul, "rsub": _rsub, "rdiv": _rdiv, "rmatmul": _rmatmul,
    "square": _square, "group_norm": _group_norm, "cosine_similarity": _cosine_similarity,
    "addcdiv": _addcdiv, "lerp": _lerp, "native_layer_norm": _native_layer_norm, "var_mean": _var_mean,
    "std_mean": _std_mean, "linalg_vecdot": _vecdot, "vecdot": _vecdot,
    "fft_fftn": _fftn, "fft_fft2": lambda input, s=None, dim=(-2, -1), norm=None: _fftn(input, s, dim, norm),
    "fft_fft": _fft, "native_group_norm": _native_group_norm,
    "fft_fftshift": _shifted, "fft_ifftshift": functools.partial(_shifted, sign=-1),
    "embedding": lambda input, weight, *_, **__: weight[input],  # of a table that depends on the input
    "expand_as": lambda input, other: input.expand(other.shape),
    "view_as": lambda input, other: input.view(other.shape),
    "reshape_as": lambda input, other: input.reshape(other.shape),
    "type_as": lambda input, other: input.to(dtype=other.dtype, device=other.device),
    "hstack": lambda tensors: torch.cat(tensors, 0 if tensors[0].dim() < 2 else 1),
    "vstack": lambda tensors: torch.cat([torch.atleast_2d(t) for t in tensors]),
    "column_stack": lambda tensors: torch.cat([t[:, None] if t.dim() < 2 else t for t in tensors], 1),
    "slice": _sliced, "index": _indexed, "convolution": _convolution, "chain_matmul": _multi_dot,
    "linalg_multi_dot": _multi_dot, "heaviside": _heaviside, "outer": _outer, "ger": _outer, "addbmm": _addbmm,
}  # fmt: skip


#: Composite where what is added to a product depends on the input (a residual connection), not where it is a bias.
SUMMING: dict[str, Callable[..., Any]] = {"addmm": _addmm, "addmv": _addmm, "index_add": _index_add}


@functools.cache
def exposed(func: Callable[..., Any]) -> Callable[..., Any]:
    """The same Python function of ``torch.nn.functional``, whose inner calls can be seen one by one.

    Such a function hands itself to the active mode as a whole and would do so for ever when called again; the
    copy differs only in that it does not ask.
    """
    blind = {name: lambda *a, **k: False for name in vars(F) if name.startswith("has_torch_function")}
    original: Any = func
    copy = types.FunctionType(original.__code__, {**vars(F), **blind}, original.__name__, original.__defaults__)
    copy.__kwdefaults__ = original.__kwdefaults__
    return copy


#: Operations whose backward needs its gradient in the layout of their output: in evaluation, on a CPU and for a batch
#: of one, torch's `batch_norm` takes a gradient in another layout for one in this layout.
PARTICULAR = {"batch_norm"}


@functools.cache
def laid_out(func: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose backward gets its gradient in the layout of its output."""

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        if out.requires_grad:
            strides = out.stride()
            out.register_hook(lambda g: torch.empty_strided(g.shape, strides, dtype=g.dtype, device=g.device).copy_(g))
        return out

    return run


#: Python functions to look into rather than to treat as one operation.
OPENED = {
    "multi_head_attention_forward", "normalize", "softmin", "cross_entropy", "nll_loss", "mse_loss",
}  # fmt: skip
