"""Time series: numbers over time, one or several channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import InputError
from ..results.input_origin import SeriesOrigin
from .sample import Sample


class SeriesReader:
    """A reader of time series, for models that take ``[batch, time, channels]``.

    Args:
        model: for the length and the channels that it takes.
        name: the model's argument.
    """

    kind = "series"

    def __init__(self, model: nn.Module, name: str = "past_values") -> None:
        config = getattr(model, "config", None)
        self.name = name
        self.time = getattr(config, "context_length", None)
        self.channels = getattr(config, "num_input_channels", None)

    def read(self, raw: Any) -> Sample:
        """Read an array ``[time]`` or ``[time, channels]``, a list of numbers, or a pandas table with named columns."""
        names = tuple(str(c) for c in getattr(raw, "columns", ()))
        try:
            values = np.asarray(raw, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"A time series is an array of numbers [time, channels]: {error}.") from error
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or not values.size or not np.isfinite(values).all():
            raise InputError(
                f"A time series is an array of finite numbers [time, channels]; this has shape {list(values.shape)}."
            )
        if isinstance(self.time, int) and len(values) != self.time:
            raise InputError(f"The series has {len(values)} time steps and the model takes {self.time}.")
        if isinstance(self.channels, int) and values.shape[1] != self.channels:
            raise InputError(f"The series has {values.shape[1]} channels and the model takes {self.channels}.")
        names = names or tuple(f"channel {i}" for i in range(values.shape[1]))
        return Sample(
            {self.name: torch.tensor(values, dtype=torch.float32)[None]}, {"series": SeriesOrigin(values, names)}
        )
