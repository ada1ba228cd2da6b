"""The families, a file for each group. Importing them adds them to the matrix."""

from conformance.families import audio  # noqa: F401
from conformance.families import decoders  # noqa: F401
from conformance.families import detection  # noqa: F401
from conformance.families import multimodal  # noqa: F401
from conformance.families import other  # noqa: F401
from conformance.families import plain  # noqa: F401
from conformance.families import seq2seq  # noqa: F401
from conformance.families import text  # noqa: F401
from conformance.families import vision  # noqa: F401
