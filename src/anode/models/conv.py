"""Hand-written backpropagation through the convolutional field, with torch's operations.

A batch is processed in slices of a few images, small enough to stay in the CPU's cache: writing activations to memory
and reading them again costs more than the arithmetic. The layout is channels-last, [images, height, width, channels].
A 1x1 convolution is then a matrix product on rows of channels, and a 3x3 convolution is as fast as one.

Only the second activation is kept for the backward pass. The first is a product with few channels: computing it again
takes less time than reading it from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from anode.engine import native
from anode.models.backprop import IN_PLACE, PULLBACKS
from anode.models.compiled_conv import CompiledConvDerivative, channels_first, channels_last, times_of
from anode.models.memory import bytes_to_keep
from anode.ode.field import Derivative

BYTES_IN_SLICE = 2**22
"""Maximum size of an activation of a slice in bytes. A training iteration on MNIST took 8.5 s with this value and 9.4 s
with twice as much (medians of alternating runs)."""


def time_map(weight: Tensor, height: int, width: int) -> Tensor:
    """Return the padded convolution of a channel of ones: one value inside, others along the border.

    A constant channel with the time t adds this map times t to the output, so the channel need not be appended.

    Args:
        weight: The channel's part of the kernel, [filters, size, size].

    Returns:
        [filters, height, width]
    """
    ones = weight.new_ones(1, 1, height, width)
    return F.conv2d(ones, weight.unsqueeze(1), padding=weight.shape[-1] // 2)[0]


def rows(x: Tensor) -> Tensor:
    """Return a matrix with one row of channels per pixel."""
    return x.reshape(-1, x.shape[-1])


def narrow(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply every pixel by a matrix [few, many]. As a convolution, this is twice as fast as a matrix product."""
    return channels_last(F.conv2d(channels_first(x), weight[..., None, None]))


class ConvDerivative(Derivative):
    """A field of convolutions 1x1, 3x3, 1x1 and its derivative with respect to the state and all parameters.

    Args:
        weights: [filters, inputs, 1, 1], [filters, filters, 3, 3] and [channels, filters, 1, 1].
        biases: Their biases.
        time_weights: The weights of time in each of them, [out, size, size]; or none.
        act: The activation function.
        activation: Its name, one of :data:`anode.models.backprop.PULLBACKS`.
    """

    def __init__(
        self,
        weights: Iterable[Tensor],
        biases: Iterable[Tensor],
        time_weights: Iterable[Tensor],
        act: Callable[[Tensor], Tensor],
        activation: str,
    ) -> None:
        self.parameters = (*weights, *biases, *time_weights)
        first, middle, last = (weight.detach() for weight in weights)
        self._middle = Middle(middle)
        self._first, self._last = first.flatten(1), last.flatten(1)  # [filters, inputs], [channels, filters]
        self._biases = [bias.detach() for bias in biases]
        self._time_weights = [weight.detach() for weight in time_weights]
        self._activation = activation
        self._act = IN_PLACE.get(activation, act)
        self._pull_act = PULLBACKS[activation]
        self._time_maps: list[Tensor] = []  # [height, width, out], [1, 1, out] where they are the same everywhere
        self._sums: Sums | None = None

    def compiled(self, y: Tensor) -> Derivative:
        convolves = native.convolves(y, self.parameters)
        return CompiledConvDerivative(self.parameters, self._activation) if convolves else self

    def steps_to_keep(self, y: Tensor, stages: int) -> int:
        return bytes_to_keep(y) // (stages * len(y) * self._bytes_an_image(y))

    def rate(self, t: Tensor, y: Tensor) -> Tensor:
        return self._evaluate(t, y, keep=None)

    def evaluate(self, t: Tensor, y: Tensor) -> Tensor:
        kept: list[Tensor] = []
        slope = self._evaluate(t, y, kept)
        slope.tape = (t, y, kept)  # type: ignore[attr-defined]
        return slope

    def _evaluate(self, t: Tensor, y: Tensor, keep: list[Tensor] | None) -> Tensor:
        self._make_time_maps(y)
        t = times_of(t, y)
        x = channels_last(y)
        slope = x.new_empty(*x.shape[:3], len(self._last))
        for part in self._slices(y):
            times = t if t.ndim == 0 else t[part]
            second = self._second(times, self._hidden(times, x[part]))
            torch.add(narrow(second, self._last), self._bias(2, times), out=slope[part])
            if keep is not None:
                keep.append(second)
        return channels_first(slope)

    def _hidden(self, t: Tensor, x: Tensor) -> Tensor:
        """Apply the first convolution and activation."""
        hidden = (rows(x) @ self._first.t()).view(*x.shape[:3], -1)
        return self._act(hidden.add_(self._bias(0, t)))

    def _second(self, t: Tensor, hidden: Tensor) -> Tensor:
        """Apply the second convolution and activation."""
        return self._act(self._middle.forward(hidden).add_(self._bias(1, t)))

    def _bias(self, layer: int, t: Tensor) -> Tensor:
        """Return what is added to the output of a layer at time t, or at one time per image."""
        if not self._time_maps:
            return self._biases[layer]
        return torch.addcmul(self._biases[layer], self._time_maps[layer], t)

    def _make_time_maps(self, y: Tensor) -> None:
        if self._time_weights and not self._time_maps:
            first, middle, last = self._time_weights
            middle = time_map(middle, *y.shape[-2:])
            self._time_maps = [weight.permute(1, 2, 0).contiguous() for weight in (first, middle, last)]

    def pull(self, slope: Tensor, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None]:
        t, y, kept = slope.tape  # type: ignore[attr-defined]
        x, g = channels_last(y), channels_last(cotangent)
        if self._sums is None:
            self._sums = Sums(self._first, self._last)
        pulled = torch.empty_like(x)
        for part, second in zip(self._slices(y), kept, strict=True):
            times = t if t.ndim == 0 else t[part]
            hidden = self._hidden(times, x[part])
            at_second = self._pull_act((rows(g[part]) @ self._last).view(second.shape), second)
            at_hidden = self._pull_act(self._middle.pull(at_second, hidden), hidden)
            pulled[part] = narrow(at_hidden, self._first.t())
            self._sums.add(times, (x[part], second), (at_hidden, at_second, g[part]))
        return channels_first(pulled), None

    def take_gradients(self) -> Sequence[Tensor]:
        sums, self._sums = self._sums or Sums(self._first, self._last), None
        return sums.gradients(self._middle.take(), self._biases, self._time_weights)

    def _bytes_an_image(self, y: Tensor) -> int:
        """Return the size of an activation of one image."""
        return y.shape[-2] * y.shape[-1] * len(self._first) * y.element_size()

    def _slices(self, y: Tensor) -> list[slice]:
        """Split the images into slices that fit the cache; on a GPU all images are one slice."""
        size = max(1, BYTES_IN_SLICE // self._bytes_an_image(y)) if y.device.type == "cpu" else len(y)
        return [slice(i, i + size) for i in range(0, len(y), size)]


class Middle:
    """The 3x3 convolution and its gradients, by torch.

    Args:
        weight: [filters, filters, 3, 3].
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.contiguous(memory_format=torch.channels_last)
        self._sum = torch.zeros_like(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of some images."""
        return channels_last(F.conv2d(channels_first(x), self.weight, padding=1))

    def pull(self, cotangent: Tensor, x: Tensor) -> Tensor:
        """Return the cotangent of x. The gradient of the weights accumulates."""
        at_x, at_weight, _ = torch.ops.aten.convolution_backward.default(
            channels_first(cotangent),
            channels_first(x),
            self.weight,
            None,
            [1, 1],  # stride
            [1, 1],  # padding
            [1, 1],  # dilation
            False,
            [0, 0],
            1,
            [True, True, False],
        )
        self._sum.add_(at_weight)
        return channels_last(at_x)

    def take(self) -> Tensor:
        """Return the gradient of the weights, summed since the last call."""
        total, self._sum = self._sum, torch.zeros_like(self.weight)
        return total


class Sums:
    """The gradients of the other parameters, accumulated slice by slice.

    Args:
        first, last: The weights.
    """

    def __init__(self, first: Tensor, last: Tensor) -> None:
        self._weights = [torch.zeros_like(weight) for weight in (first.t(), last)]
        # Sums of the cotangents of each layer's output, and of their products with t, for biases and weights of time.
        # The middle ones are summed over images only, because padding makes the effect of time differ at the border.
        self._outputs: list[Tensor] = []
        self._timed: list[Tensor] = []

    def add(self, t: Tensor, inputs: tuple[Tensor, Tensor], cotangents: tuple[Tensor, Tensor, Tensor]) -> None:
        """Add a slice.

        Args:
            t: The time, or one per image.
            inputs: Inputs of the first and the last layer.
            cotangents: Cotangents of every layer's output.
        """
        x, second = inputs
        self._weights[0].addmm_(rows(x).t(), rows(cotangents[0]))  # transposed, which is 4 times as fast
        self._weights[1].addmm_(rows(cotangents[2]).t(), rows(second))
        over = ((0, 1, 2), (0,), (0, 1, 2))
        outputs = [g.sum(dims) for g, dims in zip(cotangents, over, strict=True)]
        if t.ndim == 0:
            timed = [total * t for total in outputs]
        else:
            timed = [(g * t).sum(dims) for g, dims in zip(cotangents, over, strict=True)]
        self._outputs = [a + b for a, b in zip(self._outputs, outputs, strict=True)] if self._outputs else outputs
        self._timed = [a + b for a, b in zip(self._timed, timed, strict=True)] if self._timed else timed

    def gradients(self, middle: Tensor, biases: Sequence[Tensor], time_weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients of weights, biases and time weights; ``middle`` is that of the second weight."""
        first, last = self._weights
        weights = [first.t()[..., None, None], middle, last[..., None, None]]
        if not self._outputs:
            return [*weights, *(torch.zeros_like(p) for p in (*biases, *time_weights))]
        of_biases = [total.reshape(-1, total.shape[-1]).sum(0) for total in self._outputs]
        if not time_weights:
            return [*weights, *of_biases]
        first, middle, last = self._timed
        timed = [first[:, None, None], of_time(middle, time_weights[1]), last[:, None, None]]
        return [*weights, *of_biases, *timed]


def of_time(cotangent: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of a channel's part of the kernel, from the cotangent [height, width, filters] of its map."""
    height, width, filters = cotangent.shape
    ones = weight.new_ones(1, 1, height, width)
    at_output = cotangent.permute(2, 0, 1).unsqueeze(0)
    shape = (filters, 1, *weight.shape[1:])
    return conv2d_weight(ones, shape, at_output, padding=weight.shape[-1] // 2).squeeze(1)
