"""The training loop that the three models share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Fit:
    """AdamW with one cycle of the learning rate for each phase, and a moving average of the model.

    >>> fit = Fit(model, extra=[head])
    >>> fit.phase("pairs", steps=1000, rate=1e-3, loss=lambda: loss_of(model, head, batch()), report=accuracy)
    >>> fit.average, fit.seconds
    """

    def __init__(self, model: nn.Module, extra: Sequence[nn.Module] = (), memory: float = 0.998) -> None:
        self.model = model
        self.parameters = [p for part in (model, *extra) for p in part.parameters() if p.requires_grad]
        self._averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(memory))
        self._start = time.time()

    @property
    def average(self) -> nn.Module:
        """The model with the moving average of its weights, for evaluation."""
        return self._averaged.module.eval()

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.time() - self._start

    def phase(
        self,
        name: str,
        steps: int,
        rate: float,
        loss: Callable[[], Tensor],
        report: Callable[[nn.Module], str] = lambda average: "",
    ) -> None:
        """`steps` steps on what `loss` returns; `report` says every 500 steps how well the average does."""
        optimizer = torch.optim.AdamW(self.parameters, lr=rate, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, rate, steps, pct_start=0.1, final_div_factor=4, cycle_momentum=False
        )
        for step in range(1, steps + 1):
            self.model.train()
            value = loss()
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            optimizer.step()
            schedule.step()
            self._averaged.update_parameters(self.model)
            if step % 500 == 0 or step == steps:
                print(f"{self.seconds:5.0f} s  {name}  step {step}  {value:.4f}  {report(self.average)}", flush=True)
