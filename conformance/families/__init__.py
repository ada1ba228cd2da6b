"""The families, a file for each group. Importing them adds them to the matrix."""

from conformance.families import (
    audio,  # noqa: F401
    decoders,  # noqa: F401
    detection,  # noqa: F401
    multimodal,  # noqa: F401
    other,  # noqa: F401
    plain,  # noqa: F401
    seq2seq,  # noqa: F401
    text,  # noqa: F401
    vision,  # noqa: F401
)
