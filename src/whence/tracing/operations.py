"""The torch functions a Transformer is made of, by canonical name and by what they do to relevance.

``x + y``, ``torch.add``, ``Tensor.add_`` and ``Tensor.__radd__`` are one operation, ``add``. What an
operation *is* (its kind) depends on its operands too: a ``mul`` by a constant is a scaling, by a
statistic of its own operand a normalisation, by an activation a gate. :mod:`whence.tracing.tracer` decides that
per call; this module holds what can be said by name alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from .composites import COMPOSITE, OPENED, SUMMING


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
    sums = {"add", "sub", "mul", "div", "neg", "log_softmax"}
    return frozenset().union(PASSIVE, OPERATIONS, COMPOSITE, SUMMING, OPENED, WEIGHING, sums)


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


class OpSpec(NamedTuple):
    """What is known of a torch function by its name alone: one row of the table below.

    Attributes:
        kind: its kind (see :mod:`whence.tracing.op_kinds`); empty where that depends on its operands.
        axes: which rule of :mod:`whence.tracing.axes` gives the axes of its output; empty: they are those of its
            operands, broadcast.
        traits: what else is true of it, such as ``copies`` or ``clips``.
    """

    kind: str = ""
    axes: str = ""
    traits: frozenset[str] = frozenset()


#: The table of operations: kind, axis rule, traits, and the names of which they hold. A name stands in one row.
_ROWS: list[tuple[str, str, str, str]] = [
    # Move, select or repeat entries: linear, each output entry is one input entry. Exact under the plain gradient.
    ("structural", "permuted", "layout", "transpose permute movedim moveaxis swapaxes swapdims T t mT"),
    ("structural", "permuted", "", "H mH adjoint"),
    ("structural", "reshaped", "layout", "view reshape flatten unflatten view_as reshape_as squeeze unsqueeze"),
    ("structural", "expanded", "grows", "expand expand_as broadcast_to repeat tile"),
    ("structural", "repeated", "grows", "repeat_interleave"),
    ("structural", "joined", "joins grows", "cat"),
    ("structural", "stacked", "joins", "stack"),
    ("structural", "", "joins", "hstack vstack"),
    ("structural", "split", "", "split chunk tensor_split split_with_sizes unbind"),
    ("structural", "narrowed", "", "narrow"),
    ("structural", "unfolded", "", "unfold"),
    ("structural", "as_complex", "", "view_as_complex"),
    ("structural", "as_real", "", "view_as_real"),
    ("structural", "", "copies", "to float double half bfloat16 type type_as contiguous clone alias cpu cuda"),
    ("structural", "", "moves", "flip fliplr flipud roll rot90 gather take take_along_dim scatter index_copy"),
    ("structural", "", "moves", "index_put"),
    ("structural", "written", "moves", "setitem"),
    ("structural", "", "moves", "copy slice_scatter select_scatter"),
    ("structural", "", "adds", "index_add scatter_add"),
    ("structural", "padded", "grows", "pad"),
    ("structural", "", "", "masked_fill masked_scatter where masked_select index_fill detach data fill zero tril triu"),
    ("structural", "", "", "diagonal as_strided atleast_2d ravel pixel_shuffle pixel_unshuffle vsplit hsplit dsplit"),
    ("structural", "", "", "real pin_memory diag_embed complex imag"),
    # Pick a slice or one entry: as above, but what is not picked gets no relevance.
    ("selecting", "indexed", "moves", "getitem"),
    ("selecting", "selected", "", "select"),
    ("selecting", "", "moves", "index_select"),
    ("extreme", "reduced", "", "amax amin"),
    ("extreme", "", "clips", "maximum minimum"),
    ("extreme", "", "", "max min topk sort max_pool2d max_pool1d adaptive_max_pool2d kthvalue median"),
    # Weighted sums with a weight argument, perhaps a bias; or with fixed weights and no bias.
    ("linear", "linear", "", "linear"),
    ("linear", "sum_of_product", "", "addmm"),
    ("linear", "", "", "batch_norm"),
    ("convolution", "convolved", "", "conv1d conv2d conv3d conv_transpose1d conv_transpose2d"),
    ("", "convolved", "", "conv_transpose3d"),
    ("", "linear", "", "embedding"),
    ("reduce", "reduced", "", "sum mean"),
    ("reduce", "", "", "avg_pool cumsum interpolate upsample nansum trapezoid fold"),
    ("", "reduced", "", "var std norm vector_norm prod logsumexp"),
    # Products of two tensors; linear where one of them is a constant.
    ("", "product", "product", "matmul mm bmm"),
    ("", "einsum", "product", "einsum"),
    ("", "", "product", "mv inner tensordot dot _grouped_mm"),
    # Elementwise functions of one tensor: f(x) = x g(x), the activations of Transformer blocks; others that are finite
    # everywhere; and those that are steps of a softmax, a norm or an activation, no activation themselves.
    ("gated", "", "", "gelu silu relu relu6 leaky_relu mish hardswish prelu pow elu celu selu rrelu tanhshrink"),
    ("gated", "", "", "softshrink hardshrink float_power"),
    ("activation", "", "clips", "clamp clamp_min clamp_max clip threshold nan_to_num hardtanh"),
    ("activation", "", "", "hardsigmoid tanh sigmoid softplus softsign logsigmoid erf sin cos square abs ndtr"),
    ("function", "", "", "exp expm1 exp2 rpow log log1p log2 log10 sqrt rsqrt reciprocal"),
    ("norm", "", "", "layer_norm rms_norm"),
    ("softmax", "", "", "softmax _safe_softmax"),
    ("attention", "attended", "", "scaled_dot_product_attention"),
    ("identity", "", "", "dropout alpha_dropout feature_dropout dropout1d dropout2d dropout3d identity"),
    ("identity", "", "", "feature_alpha_dropout"),
    # Comparisons and the like: their result carries no gradient by nature.
    ("discrete", "", "compares", "eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__ isnan isinf isfinite"),
    ("discrete", "", "compares", "sign logical_not"),
    ("discrete", "created", "", "zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones"),
    ("discrete", "created", "", "new_full new_empty new_tensor"),
    ("discrete", "reduced", "", "argmax"),
    ("discrete", "", "", "argmin argsort any all floor ceil round nonzero allclose equal long int bool"),
    ("discrete", "one_hot", "", "one_hot"),
    ("discrete", "", "", "bernoulli is_nonzero result_type can_cast broadcast_tensors isin logical_and searchsorted"),
]

OPERATIONS: dict[str, OpSpec] = {
    name: OpSpec(kind, axes, frozenset(traits.split())) for kind, axes, traits, names in _ROWS for name in names.split()
}
_UNKNOWN = OpSpec()


def spec(name: str) -> OpSpec:
    """Return the row of an operation, by its canonical name."""
    return OPERATIONS.get(name, _UNKNOWN)


def with_trait(trait: str) -> frozenset[str]:
    """Return the names of the operations with a trait."""
    return frozenset(name for name, row in OPERATIONS.items() if trait in row.traits)


def of_kind(kind: str) -> frozenset[str]:
    """Return the names of the operations that are of a kind whatever their operands."""
    return frozenset(name for name, row in OPERATIONS.items() if row.kind == kind)


COPYING = with_trait("copies")  # copy a tensor, at most into another type
CLIPPING = with_trait("clips")  # leave a tensor as it is between bounds
LAYOUT = with_trait("layout")  # lay out all entries of a tensor in another shape or order of dimensions
SCATTERING = with_trait("adds")  # add entries at given places
PRODUCTS = with_trait("product")  # products of two tensors
COMPARING = with_trait("compares")  # compare a tensor with a number, element by element
CONVOLUTIONS = of_kind("convolution")
ATTENTION = of_kind("attention")
SOFTMAX = of_kind("softmax")
IDENTITY = of_kind("identity")

#: Where an operation with weights has its input.
WEIGHING = {
    **dict.fromkeys(("linear", "batch_norm", "layer_norm", "rms_norm", *CONVOLUTIONS, "embedding"), 0),
    "addmm": 1,
}


def is_stretch(index: Any) -> bool:
    """Whether an index makes a view, not a copy."""
    items = index if isinstance(index, tuple) else (index,)
    return all(item is None or isinstance(item, int | slice | type(...)) for item in items)
