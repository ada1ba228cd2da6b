"""The torch functions a Transformer is made of, by canonical name and by what they do to relevance.

``x + y``, ``torch.add``, ``Tensor.add_`` and ``Tensor.__radd__`` are one operation, ``add``. What an
operation *is* (its kind) depends on its operands too: a ``mul`` by a constant is a scaling, by a
statistic of its own operand a normalisation, by an activation a gate. :mod:`whence.tracing.tracer` decides that
per call; this module holds what can be said by name alone.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor


class Operation(NamedTuple):
    """A torch function's canonical name, and whether it writes into its first argument."""

    name: str
    inplace: bool


_DUNDER = {
    "__add__": "add", "__radd__": "add", "__sub__": "sub", "__mul__": "mul", "__rmul__": "mul",
    "__truediv__": "div", "__div__": "div", "__matmul__": "matmul", "__rmatmul__": "rmatmul", "__rsub__": "rsub",
    "__rtruediv__": "rdiv", "__rdiv__": "rdiv", "__neg__": "neg", "__pow__": "pow", "__rpow__": "rpow",
    "__getitem__": "getitem", "__setitem__": "setitem", "__abs__": "abs",
    "__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_", "__idiv__": "div_",
    "__ipow__": "pow_",
}  # fmt: skip
_ALIASES = {
    "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg", "absolute": "abs",
    "concat": "cat", "concatenate": "cat", "_softmax": "softmax", "special_softmax": "softmax",
    "linalg_vector_norm": "vector_norm", "linalg_norm": "norm", "special_expit": "sigmoid", "special_erf": "erf",
    "inner": "inner", "adaptive_avg_pool1d": "avg_pool", "adaptive_avg_pool2d": "avg_pool",
    "avg_pool1d": "avg_pool", "avg_pool2d": "avg_pool", "log_sigmoid": "logsigmoid", "_threshold": "threshold",
    "special_ndtr": "ndtr", "special_log_softmax": "log_softmax", "special_logsumexp": "logsumexp",
    "_log_softmax": "log_softmax", "_to_copy": "to", "constant_pad_nd": "pad", "row_stack": "vstack", "vdot": "dot",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne", "positive": "clone",
    "trapz": "trapezoid", "resolve_conj": "alias", "resolve_neg": "alias", "adaptive_avg_pool3d":
    "avg_pool", "avg_pool3d": "avg_pool", "_adaptive_avg_pool2d": "avg_pool", "nelement": "numel", "dsmm": "mm",
    "spmm": "mm", "_convolution": "convolution",
}  # fmt: skip
#: what torch adds to the name of a function where the same one is in another namespace, or makes no view
_PREFIXES = ("special_", "linalg_", "_unsafe_", "unsafe_", "_")
_SUFFIXES = ("_copy", "_with_indices")
#: functions whose name without a prefix is that of another function
_OTHERS = {"linalg_diagonal", "_weight_norm", "_grouped_mm", "_index_put_impl"}


@functools.lru_cache(maxsize=4096)
def operation(func: Callable[..., Any]) -> Operation:
    """The canonical operation behind a torch function.

    Example:
        >>> operation(torch.Tensor.add_)
        Operation(name='add', inplace=True)
    """
    owner: Any = func
    if owner.__name__ == "__get__":  # of an attribute, or of a property
        owner = getattr(owner.__self__, "fget", owner.__self__)
    name = str(owner.__name__)
    name = _DUNDER.get(name, name.split(".")[0])  # torch.ops name an overload, too
    inplace = name == "setitem" or (name.endswith("_") and not name.endswith("__"))
    name = name.rstrip("_") if inplace else name
    return Operation(_canonical(name), inplace)


def _canonical(name: str) -> str:
    """The name of a function by which it is known: ``unsafe_chunk`` and ``view_copy`` are ``chunk`` and ``view``."""
    name = _ALIASES.get(name, name)
    if name in known_names() or name in _OTHERS:
        return name
    shorter = [name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)]
    shorter += [name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)]
    found = (_ALIASES.get(other, other) for other in shorter)
    return next((other for other in found if other in known_names()), name)


@functools.cache
def known_names() -> frozenset[str]:
    """Every canonical name that says what a function does."""
    tables = (
        PASSIVE, STRUCTURAL, SELECTING, EXTREMES, REDUCING, LINEAR, CONVOLUTIONS, PRODUCTS, ACTIVATIONS, GATED, NORMS,
        SOFTMAX, ATTENTION, IDENTITY, DISCRETE, SCATTERING, COMPOSITE, SUMMING, OPENED, WEIGHING,
        {"add", "sub", "mul", "div", "neg", "logsumexp", "log_softmax", "norm", "std", "var", "prod"},
    )  # fmt: skip
    return frozenset().union(*tables)


def usual_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Operands by position where they are given by name, and no factor of 1 in a sum."""
    given = dict(kwargs)
    if not args and isinstance(given.get("input"), Tensor):
        args = (given.pop("input"),)
    if len(args) == 1 and "other" in given:
        args = (*args, given.pop("other"))
    if given.get("alpha") == 1 and not isinstance(given["alpha"], bool):
        del given["alpha"]
    return args, given


#: Reads that say nothing about values: never recorded.
PASSIVE = {
    "shape", "size", "dim", "ndim", "ndimension", "dtype", "device", "requires_grad", "is_cuda", "is_floating_point",
    "numel", "stride", "layout", "is_contiguous", "__len__", "is_nested", "is_sparse", "data_ptr", "element_size",
    "is_complex", "is_leaf", "grad_fn", "grad", "names", "is_quantized", "is_meta", "itemsize", "nbytes", "get_device",
    "storage_offset", "untyped_storage", "is_inference", "__format__", "__repr__", "__hash__", "__bool__", "item",
    "tolist", "is_same_size", "_version", "register_hook", "is_conj", "is_neg", "__contains__",
    "__int__", "__float__", "__index__", "numpy", "_set_grad_enabled", "is_grad_enabled", "is_tensor", "set_data",
    "_nested_tensor_from_mask_left_aligned",
}  # fmt: skip

#: Move, select or repeat entries: linear, each output entry is one input entry. Exact under the plain gradient.
STRUCTURAL = {
    "view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "squeeze", "unsqueeze", "transpose", "permute",
    "movedim", "moveaxis", "swapaxes", "swapdims", "T", "t", "mT", "H", "mH", "adjoint", "contiguous", "clone",
    "expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave", "cat", "stack", "split", "chunk",
    "tensor_split", "split_with_sizes", "unbind", "narrow", "roll", "flip", "fliplr", "flipud",
    "unfold", "pad", "gather", "take_along_dim",
    "masked_fill", "masked_scatter", "where", "masked_select", "index_copy", "index_put", "scatter", "index_fill",
    "copy", "setitem", "to", "float", "double", "half", "bfloat16", "type", "type_as", "cpu", "cuda", "detach", "alias",
    "data", "fill", "zero", "tril", "triu", "diagonal", "as_strided", "hstack", "vstack", "atleast_2d", "ravel",
    "pixel_shuffle", "pixel_unshuffle", "vsplit", "hsplit", "dsplit", "rot90", "real", "pin_memory", "diag_embed",
    "index_add", "scatter_add", "slice_scatter", "select_scatter", "view_as_real", "view_as_complex",
    "complex", "imag",
}  # fmt: skip

#: Copy a tensor, at most into another type.
COPYING = {
    "to",
    "float",
    "double",
    "type_as",
    "contiguous",
    "clone",
    "bfloat16",
    "half",
    "alias",
    "type",
    "cpu",
    "cuda",
}

#: Leave a tensor as it is between bounds.
CLIPPING = {"clamp", "clamp_min", "clamp_max", "clip", "threshold", "nan_to_num", "hardtanh", "maximum", "minimum"}

#: Lay out all entries of a tensor in another shape or order of dimensions.
LAYOUT = {
    "view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "squeeze", "unsqueeze", "transpose", "permute",
    "movedim", "moveaxis", "swapaxes", "swapdims", "T", "t", "mT",
}  # fmt: skip

#: Pick a stretch or one entry: as above, but what is not picked gets no relevance.
SELECTING = {"getitem", "select", "index_select"}
EXTREMES = {"max", "amax", "amin", "min", "topk", "sort", "max_pool2d", "max_pool1d", "adaptive_max_pool2d", "maximum",
            "minimum", "kthvalue", "median"}  # fmt: skip

#: Weighted sums with fixed weights and no bias.
REDUCING = {"sum", "mean", "avg_pool", "cumsum", "interpolate", "upsample", "nansum", "trapezoid", "fold"}

#: Weighted sums with a weight argument, perhaps a bias.
LINEAR = {"linear", "addmm", "batch_norm"}
CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"}

#: Where an operation with weights has its input.
WEIGHING = {
    **dict.fromkeys(("linear", "batch_norm", "layer_norm", "rms_norm", *CONVOLUTIONS, "embedding"), 0),
    "addmm": 1,
}

#: Products of two tensors; linear where one of them is a constant.
PRODUCTS = {"matmul", "mm", "bmm", "einsum", "mv", "inner", "tensordot", "dot", "_grouped_mm"}

#: Elementwise functions of one tensor.
ACTIVATIONS = {
    "gelu", "silu", "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "mish", "hardswish", "hardtanh",
    "hardsigmoid", "tanh",
    "sigmoid", "softplus", "softsign", "logsigmoid", "erf", "exp", "expm1", "log", "log1p", "sin", "cos",
    "square", "abs", "clamp", "clamp_min", "clamp_max", "clip", "threshold", "prelu", "rrelu", "sqrt", "rsqrt",
    "reciprocal", "nan_to_num", "tanhshrink", "softshrink", "log2", "exp2", "rpow", "ndtr",
}  # fmt: skip
#: f(x) = x * gate(x): the activations of Transformer blocks.
GATED = {
    "gelu", "silu", "relu", "relu6", "leaky_relu", "mish", "hardswish", "prelu", "pow", "elu", "celu", "selu", "rrelu",
    "tanhshrink", "softshrink", "hardshrink", "float_power",
}  # fmt: skip

NORMS = {"layer_norm", "rms_norm"}
SOFTMAX = {"softmax", "_safe_softmax"}
ATTENTION = {"scaled_dot_product_attention"}
IDENTITY = {"dropout", "alpha_dropout", "feature_dropout", "dropout1d", "dropout2d", "dropout3d", "identity",
            "feature_alpha_dropout"}  # fmt: skip
#: Comparisons and the like: their result carries no gradient by nature.
DISCRETE = {
    "eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "isnan", "isinf",
    "isfinite", "argmax", "argmin", "argsort", "any", "all", "sign", "floor", "ceil", "round", "zeros_like",
    "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_full",
    "new_empty", "new_tensor", "nonzero", "allclose", "equal", "long", "int", "bool", "one_hot", "bernoulli",
    "is_nonzero", "result_type", "can_cast", "broadcast_tensors", "isin", "logical_not", "logical_and", "searchsorted",
}  # fmt: skip

#: Add entries at given places.
SCATTERING = {"index_add", "scatter_add"}

#: Those of them that are elementwise functions of one tensor, where they compare it with a number.
COMPARING = {
    "eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "isnan", "isinf",
    "isfinite", "sign", "logical_not",
}  # fmt: skip


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
    moved: Tensor = input + (end - input) * weight
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
    return torch.mul(torch.reciprocal(input), other)


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


def _fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, axis: int = -1) -> Tensor:
    return _fftn(input, None if n is None else (n,), (dim if axis == -1 else axis,), norm)


#: Composite operations, written out in operations that have a kind.
COMPOSITE: dict[str, Callable[..., Any]] = {
    "glu": _glu, "baddbmm": _baddbmm, "addcmul": _addcmul, "rsub": _rsub, "rdiv": _rdiv, "rmatmul": _rmatmul,
    "square": _square, "group_norm": _group_norm, "cosine_similarity": _cosine_similarity,
    "addcdiv": _addcdiv, "lerp": _lerp, "native_layer_norm": _native_layer_norm, "var_mean": _var_mean,
    "std_mean": _std_mean, "linalg_vecdot": _vecdot, "vecdot": _vecdot,
    "fft_fftn": _fftn, "fft_fft2": lambda input, s=None, dim=(-2, -1), norm=None: _fftn(input, s, dim, norm),
    "fft_fft": _fft, "native_group_norm": _native_group_norm,
    "expand_as": lambda input, other: input.expand(other.shape),
    "view_as": lambda input, other: input.view(other.shape),
    "reshape_as": lambda input, other: input.reshape(other.shape),
    "type_as": lambda input, other: input.to(dtype=other.dtype, device=other.device),
    "hstack": lambda tensors: torch.cat(tensors, 0 if tensors[0].dim() < 2 else 1),
    "vstack": lambda tensors: torch.cat([torch.atleast_2d(t) for t in tensors]),
    "column_stack": lambda tensors: torch.cat([t[:, None] if t.dim() < 2 else t for t in tensors], 1),
    "slice": _sliced, "index": _indexed, "convolution": _convolution, "chain_matmul": _multi_dot,
    "linalg_multi_dot": _multi_dot, "outer": _outer, "ger": _outer, "addbmm": _addbmm,
}  # fmt: skip


#: Composite where what is added to a product depends on the input (a residual connection), not where it is a bias.
SUMMING: dict[str, Callable[..., Any]] = {"addmm": _addmm, "addmv": _addmm, "index_add": _index_add}


@functools.cache
def opened(func: Callable[..., Any]) -> Callable[..., Any]:
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


def is_stretch(index: Any) -> bool:
    """Whether an index makes a view, not a copy."""
    items = index if isinstance(index, tuple) else (index,)
    return all(item is None or isinstance(item, int | slice | type(...)) for item in items)
