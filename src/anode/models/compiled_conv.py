"""The convolutional field and its derivative by the compiled engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anode.engine.extension import extension
from anode.engine.program.layout import ACTIVATIONS
from anode.models.memory import bytes_to_keep
from anode.ode.field import Derivative


def channels_last(y: Tensor) -> Tensor:
    """Return images [n, channels, height, width] as [n, height, width, channels], without a copy if possible."""
    return y.permute(0, 2, 3, 1).contiguous()


def channels_first(x: Tensor) -> Tensor:
    """Return a view of images [n, height, width, channels] as [n, channels, height, width]."""
    return x.permute(0, 3, 1, 2)


def times_of(t: Tensor, y: Tensor) -> Tensor:
    """Return the time of all images, or one per image; raise ``ValueError`` for any other number of times."""
    if t.ndim and t.numel() != len(y):
        takes = '"joint" or 1 for images, whose channels and pixels depend on each other'
        raise ValueError(f"control: takes {takes}, got {t.numel()} times for {len(y)} images")
    return t


class CompiledConvDerivative(Derivative):
    """The compiled field and its derivative, whose 3x3 convolution needs a quarter of the multiplications.

    Its rounding errors are about 30 times larger, 5e-6 of the largest output, which is far below any tolerance of a
    solve.

    Args:
        parameters: Weights, biases and weights of time, if any. :func:`anode.engine.native.convolves` must return true
            for them.
        activation: Name of the activation.
        instructions: Instruction set. Defaults to the best that the processor supports.
    """

    def __init__(self, parameters: Sequence[Tensor], activation: str, instructions: str = "") -> None:
        self.parameters = tuple(parameters)
        self._parameters = [p.detach().contiguous() for p in parameters]
        filters, inputs = parameters[0].shape[:2]
        self._outputs = len(parameters[2])
        self._engine = extension.ConvField(
            inputs=inputs,
            outputs=self._outputs,
            filters=filters,
            activation=ACTIVATIONS.index(activation),
            time=len(parameters) > 6,
            parameters=[p.data_ptr() for p in self._parameters],
            instructions=instructions,
        )

    def steps_to_keep(self, y: Tensor, stages: int) -> int:
        return bytes_to_keep(y) // (stages * self._kept_elements(y) * y.element_size())

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        return self._evaluate(t, y, None)

    def evaluate(self, t: Tensor, y: Tensor) -> Tensor:
        kept = y.new_empty(self._kept_elements(y))
        slope = self._evaluate(t, y, kept)
        slope.tape = (t, y, kept)  # type: ignore[attr-defined]
        return slope

    def _kept_elements(self, y: Tensor) -> int:
        return len(y) * y.shape[-2] * y.shape[-1] * self._engine.stride

    def _evaluate(self, t: Tensor, y: Tensor, kept: Tensor | None) -> Tensor:
        x = channels_last(y.resolve_neg())
        times, slope = self._times(t, y), x.new_empty(*x.shape[:3], self._outputs)
        self._engine.evaluate(
            times.data_ptr(),
            times.ndim > 0,
            x.data_ptr(),
            *x.shape[:3],
            slope.data_ptr(),
            0 if kept is None else kept.data_ptr(),
            torch.get_num_threads(),
        )
        return channels_first(slope)

    def pull(self, slope: Tensor, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        t, y, kept = slope.tape  # type: ignore[attr-defined]
        x, g = (channels_last(each.resolve_neg()) for each in (y, cotangent))
        times, pulled = self._times(t, y), torch.empty_like(x)
        self._engine.pull(
            times.data_ptr(),
            times.ndim > 0,
            x.data_ptr(),
            *x.shape[:3],
            kept.data_ptr(),
            g.data_ptr(),
            pulled.data_ptr(),
            torch.get_num_threads(),
        )
        return channels_first(pulled), None

    def take_gradients(self) -> Sequence[Tensor]:
        gradients = [torch.empty_like(p) for p in self._parameters]
        self._engine.take([g.data_ptr() for g in gradients])
        return gradients

    def _times(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the time, or one per image, in the layout that the engine reads."""
        return times_of(t, y).to(torch.float32).contiguous()
