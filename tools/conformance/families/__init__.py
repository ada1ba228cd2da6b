"""The families, a file for each group. Importing them adds them to the matrix."""

from tools.conformance.families import audio, decoders, detection, multimodal, other, plain, seq2seq, text, vision

__all__ = ["audio", "decoders", "detection", "multimodal", "other", "plain", "seq2seq", "text", "vision"]
