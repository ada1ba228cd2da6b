"""Audio: read from a file or an array, at the sampling rate that the model takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .._utils.atomic_files import is_file, shortened
from .._utils.optional_imports import need
from ..errors import InputError
from ..results.input_origin import AudioOrigin
from .sample import Sample

LONGEST = 1 << 28  # values of all channels, a gigabyte in memory: 4.6 hours of one channel at 16 kHz


class AudioReader:
    """A reader of audio, by a HuggingFace feature extractor.

    Args:
        extractor: called with the waveform and its sampling rate.
    """

    kind = "audio"

    def __init__(self, extractor: Any) -> None:
        self.extractor = extractor
        self.rate = int(getattr(extractor, "sampling_rate", 16000))

    def read(self, raw: Any) -> Sample:
        """Read a path, a waveform at the model's rate, or ``{"array": waveform, "sampling_rate": rate}``."""
        wave, rate, name = read_waveform(raw, self.rate)
        if rate != self.rate:
            wave, rate = _resample(wave, rate, self.rate), self.rate
        out = self.extractor(wave, sampling_rate=rate, return_tensors="pt")
        tensors = {k: v for k, v in out.items() if isinstance(v, Tensor)}
        if not tensors:
            raise InputError(f"{type(self.extractor).__name__} made no tensor of the recording.")
        seconds = self._input_seconds(tensors, len(wave) / rate)
        return Sample(tensors, {"audio": AudioOrigin(wave, rate, seconds, name)})

    def _input_seconds(self, tensors: Mapping[str, Tensor], seconds: float) -> float:
        """Return the seconds that the model's input covers: extractors pad and truncate."""
        values = next(iter(tensors.values()))
        if values.dim() == 2:
            return values.shape[1] / self.rate
        hop = getattr(self.extractor, "hop_length", None)
        if isinstance(hop, int):  # [1, mel bands, frames], as Whisper
            return values.shape[2] * hop / self.rate
        frames = getattr(self.extractor, "max_length", None)
        if isinstance(frames, int):  # [1, frames, mel bands] of 10 ms, as Kaldi's filter banks
            return frames * 0.01
        return seconds


def read_waveform(raw: Any, rate: int) -> tuple[npt.NDArray[np.float32], int, str]:
    """Return a waveform ``[N]`` of one channel, its sampling rate and its name."""
    name = ""
    if isinstance(raw, str | Path):
        name = Path(raw).name
        wave, rate = _open(str(raw))
    elif isinstance(raw, Mapping) and "array" in raw:
        given = raw.get("sampling_rate", rate)
        if not isinstance(given, int | float) or given < 1:
            raise InputError(f"'sampling_rate' is a number of samples per second, not {given!r}.")
        wave, rate = np.asarray(raw["array"]), int(given)
    elif isinstance(raw, np.ndarray):
        wave = raw
    else:
        raise InputError(
            f"A recording is a path, a wave (numpy array), or {{'array': wave, 'sampling_rate': rate}}, not "
            f"{type(raw).__name__}."
        )
    if wave.dtype.kind == "i":
        wave = wave / -float(np.iinfo(wave.dtype).min)
    wave = wave.mean(1) if wave.ndim == 2 and wave.shape[1] <= 8 else wave
    if wave.ndim != 1 or not wave.size or wave.dtype.kind != "f":
        raise InputError(f"A wave has one value per sample; this array has shape {list(wave.shape)} ({wave.dtype}).")
    if not np.isfinite(wave).all():
        raise InputError("The recording holds a NaN or an infinity.")
    return wave.astype(np.float32), rate, name


def _open(path: str) -> tuple[npt.NDArray[Any], int]:
    if "://" in path:
        raise InputError(f"'{path}' is an address on the network, and Whence fetches nothing: give a file's path.")
    if not is_file(path):
        raise InputError(f"There is no file '{shortened(path)}'.")
    library = need("soundfile", "recordings", "audio")
    try:
        about = library.info(path)
        if about.frames * about.channels > LONGEST:
            raise InputError(
                f"'{path}' unpacks to {about.frames:,} samples of {about.channels} channels, more than {LONGEST:,} "
                "values: it was not read. Cut out the part that is to be explained."
            )
        wave, rate = library.read(path, dtype="float32")
    except (RuntimeError, OSError) as error:
        raise InputError(f"'{path}' is not a recording that can be read: {error}.") from error
    return wave, int(rate)


def _resample(wave: npt.NDArray[np.float32], rate: int, wanted: int) -> npt.NDArray[np.float32]:
    common = math.gcd(rate, wanted)
    signal = need("scipy.signal", f"resampling ({rate} to {wanted} samples per second)", "audio")
    out: npt.NDArray[np.float32] = signal.resample_poly(wave, wanted // common, rate // common).astype(np.float32)
    return out
