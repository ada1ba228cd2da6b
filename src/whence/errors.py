"""Every error Whence raises on purpose: a sentence that says what was found and what to do."""

from __future__ import annotations


class WhenceError(Exception):
    """Base of all errors raised by Whence."""


class WhenceWarning(UserWarning):
    """Something about the model or the inputs that makes an explanation less than it seems."""


class MethodError(WhenceError):
    """The method's name or one of its options is unknown or out of range."""


class TargetError(WhenceError):
    """The target does not name an output of this model."""


class InputError(WhenceError):
    """The inputs cannot be explained as they are (empty, mismatched, on another device, no source)."""


class ModelError(WhenceError):
    """The model does something that the method cannot be right about."""


class SamplesMixedError(ModelError):
    """The samples of a batch cannot be told apart somewhere inside the model."""


class NumericalError(WhenceError):
    """A NaN or an infinity was met; the message names where it first appears."""


class EngineError(WhenceError):
    """Whence itself failed on a model and an input that work without it: please report it."""


class FileError(WhenceError):
    """A file is missing, damaged, of another kind, or cannot be written."""


class WriteError(FileError):
    """A file could not be written."""


class MissingError(WhenceError):
    """A library that this needs is not installed."""


#: where a model meets other operations when some values in it are others
AGAIN = (
    "The model could not be run again with other values in it: what enters its blocks was made along with other "
    "tensors, or in another way this time. Read elsewhere: at='token' or at='pixel'."
)
