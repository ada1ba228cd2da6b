"""What an unexpected exception means: the model, the target function or Whence fails, and each is tried by itself."""

from __future__ import annotations

import contextlib
import platform
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import EngineError, InputError, ModelError, TargetError, WhenceError
from ..propagation.relevance_function import BackwardOp
from ..targets.seed import find_logits, labels_of
from ..targets.specs import with_labels
from ..tracing.eval_mode import undisturbed
from ..tracing.op_call import Call, tensors_in
from ..tracing.operations import operation
from ..tracing.tensor_info import info_of
from ..tracing.tracer import Trace

#: what torch says where a backward pass is not possible
NO_BACKWARD = re.compile("inplace operation|derivative for .* not implemented|no autograd formula")
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Attempt:
    """What was tried: the explanation of these inputs and targets by this method.

    Attributes:
        model: the model.
        method: the name of the method.
        own: whether the method comes with Whence; if not, its exceptions are its author's.
        args, kwargs: the arguments of the model.
        targets: what is explained.
    """

    model: nn.Module
    method: str
    own: bool
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    targets: Sequence[Any]

    @contextlib.contextmanager
    def diagnosed(self) -> Iterator[None]:
        """Raise, in place of an unexpected exception, an error that says what is known to be its cause.

        Errors of Whence, interrupts, lack of memory, and exceptions in a method of the user's own pass as they are.
        """
        try:
            yield
        except WhenceError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            found = self.diagnosis(error)
            if found is error:
                raise
            raise found from (found.__cause__ or error)

    def diagnosis(self, error: Exception) -> Exception:
        """Return the error to raise in place of an unexpected one: the model and the targets are run without Whence."""
        failure = plain_failure(self.model, self.args, self.kwargs)
        if failure is not None:
            return failure if is_out_of_memory(failure) else _of_the_model(failure)
        failed = self._target_failure()
        if failed is not None:
            return failed
        own = plain_backward_failure(self.model, self.args, self.kwargs, self.targets)
        if NO_BACKWARD.search(str(error)):
            return self._of_the_backward_pass(error, own)
        if own is not None and (type(own), str(own)) == (type(error), str(error)):
            return ModelError(f"The model's own backward pass fails, also without Whence: {_said(own)}.")
        return self._of_whence(error) if self.own else error

    def _target_failure(self) -> Exception | None:
        """Return the error of the first target function that fails on the plain model's outputs, or ``None``."""
        for target in self.targets:
            if not callable(target):
                continue
            with plain(self.model):
                try:
                    with_labels(target, labels_of(self.model))(_run(self.model, self.args, self.kwargs))
                except WhenceError as error:
                    return error
                except Exception as error:
                    name = getattr(target, "__name__", type(target).__name__)
                    found = TargetError(
                        f"The target function '{name}' fails on the model's outputs, also without Whence "
                        f"({_said(error)}). It is called with what the model returns, and returns a tensor of shape "
                        "[batch]."
                    )
                    found.__cause__ = error
                    return found
        return None

    def _of_the_backward_pass(self, error: Exception, own: Exception | None) -> ModelError:
        """Return the error for a backward pass that torch cannot compute; ``own`` is what a plain one raises."""
        said = f"Torch says: {error}"
        if own is None and "inplace operation" in str(error):
            return ModelError(
                f"The model overwrites a tensor in place that '{self.method}' needs afterwards; a plain backward pass "
                "of the model does not need it. Replace the in-place operation by one that makes a new tensor, or use "
                f"another method (gradient-x-input). {said}"
            )
        if own is None:
            return ModelError(
                f"'{self.method}' needs a derivative that torch does not have, and that a plain backward pass of the "
                f"model does not need. Use another method (gradient-x-input). {said}"
            )
        if "inplace operation" in str(own):
            return ModelError(
                "The model overwrites a tensor in place that its own backward pass needs: without Whence, it fails, "
                f"too. Replace the in-place operation by one that makes a new tensor. {said}"
            )
        return ModelError(
            f"The model has no backward pass: without Whence, it fails, too ({_said(own)}). Replace the function "
            f"without a derivative by one that torch can differentiate. {said}"
        )

    def _of_whence(self, error: Exception) -> EngineError:
        """Return the error for a fault of Whence."""
        tensors = {**{str(i): a for i, a in enumerate(self.args)}, **self.kwargs}
        shapes = ", ".join(
            f"{name} {list(t.shape)} {str(t.dtype).removeprefix('torch.')}"
            for name, t in tensors.items()
            if isinstance(t, Tensor)
        )
        return EngineError(
            f"Whence failed in '{self.method}'{place_of(error, self.model)}: {_said(error)}. The model runs on this "
            "input without Whence, so this is a fault of Whence. Please report it in Whence's issue tracker with this "
            f"message, the class of the model ({type(self.model).__name__}) and how it is built or loaded, and the "
            f"inputs ({shapes}); {_versions()}. Until it is mended, another method "
            "may work."
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory is exhausted."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


@contextlib.contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """Let a model be run as the engine runs it, but without a trace; afterwards it is as it was found."""
    with torch.inference_mode(False), torch.enable_grad(), undisturbed(model):
        yield


def plain_failure(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """Return the exception that a model raises on these inputs without Whence; ``None`` if it runs."""
    with plain(model):
        try:
            _run(model, args, kwargs)
        except Exception as error:
            return error
    return None


def plain_backward_failure(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], targets: Sequence[Any]
) -> Exception | None:
    """Return the exception that a backward pass of a model raises without Whence; ``None`` if it runs.

    It goes from each target (the sum of the logits, where the target is no function) to all parameters and
    floating-point inputs, whichever of them the user has frozen.
    """
    weights = {name: _leaf(p) for name, p in model.named_parameters() if p.is_floating_point()}
    given = [_leaf(a) for a in args], {name: _leaf(value) for name, value in kwargs.items()}
    leaves = [t for t in (*weights.values(), *tensors_in(*given[0], *given[1].values())) if t.requires_grad]
    labels = labels_of(model)
    with plain(model):
        try:
            for target in targets:
                outputs = torch.func.functional_call(model, weights, *_copies(*given))
                value = with_labels(target, labels)(outputs) if callable(target) else find_logits(outputs)
                assert value is not None
                torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        except Exception as error:
            return error
    return None


def place_of(error: Exception, model: nn.Module) -> str:
    """Return where an exception was raised: the operation and the module of the model, if known, and Whence's line."""
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[str, str] = {}
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = names.get(id(frame.f_locals.get("self")))
        if module:
            found["module"] = module
        found.update(_operation_in(frame))
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path != Path(__file__):
            found["line"] = f"{path.relative_to(ROOT).as_posix()}:{line}"
    named = {"operation": " at the operation '{}'", "module": " in the module '{}'", "line": " ({})"}
    return "".join(text.format(found[name]) for name, text in named.items() if name in found)


def _operation_in(frame: FrameType) -> dict[str, str]:
    """Return the operation that a frame of the engine works on, and the module whose weight that has."""
    values = frame.f_locals
    if isinstance(values.get("self"), Trace) and callable(values.get("func")):
        return {"operation": operation(values["func"]).name}
    for value in values.values():
        if isinstance(value, Call):
            return {"operation": value.name}
        if isinstance(value, BackwardOp):
            weight = "" if value.weight is None else info_of(value.weight).name
            module = weight.rpartition(".")[0]
            return {"operation": value.name} | ({"module": module} if module else {})
    return {}


def _versions() -> str:
    """Return the versions of the packages that a report names, and of Python."""
    found = [f"Python {platform.python_version()}"]
    for name in ("whence", "torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


def _of_the_model(failure: Exception) -> InputError:
    """Return the error for a model that fails without Whence."""
    found = InputError(
        f"The model itself fails on this input, also without Whence: {_said(failure)}. Run model(...) on the same "
        "input to see where."
    )
    found.__cause__ = failure
    return found


def _said(error: Exception) -> str:
    """Return the class and the first line of the message of an exception."""
    lines = str(error).strip().splitlines()
    return type(error).__name__ + (f": {lines[0].rstrip('.')}" if lines else "")


def _run(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a model on copies of its inputs, which it may overwrite."""
    args, kwargs = _copies(args, kwargs)
    return model._call_impl(*args, **kwargs)


def _copies(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(map(_copy, args)), {name: _copy(value) for name, value in kwargs.items()}


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _leaf(value: Any) -> Any:
    """Return a tensor at which a gradient can be read, where a value is one of floating point."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().requires_grad_(value.is_floating_point())
