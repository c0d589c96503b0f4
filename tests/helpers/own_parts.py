"""Fields and augmentations as users write them, in a module that other processes can import."""

import torch
from torch import nn

import anode


@anode.register
class Swirl(nn.Module):
    """A field for rows that depends on time."""

    def __init__(self, size, speed=1.0):
        super().__init__()
        self.linear, self.speed = nn.Linear(size, size), speed

    def forward(self, t, h):
        return self.speed * torch.tanh(self.linear(h) + t)


@anode.register
def noisy_layers(size):
    """A field of torch's layers, one of which is random in training."""
    return nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, size))


@anode.register
def convolutions(shape, width=6):
    """A field for images that does not say which dimension its features are."""
    return nn.Sequential(nn.Conv2d(shape[0], width, 3, padding=1), nn.Tanh(), nn.Conv2d(width, shape[0], 1))


class Private(nn.Module):
    """A field that is not registered."""

    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, t, h):
        return torch.tanh(self.linear(h) * (1 + t))


@anode.register
class Lift(anode.Augment):
    """An augmentation that is learned."""

    def __init__(self, features, extra):
        super().__init__()
        self.lift = nn.Linear(features, extra)

    def forward(self, x):
        return torch.cat([x, self.lift(x)], dim=-1)


class Scaled(anode.Model):
    """A model that contains a flow."""

    def __init__(self, flow):
        super().__init__()
        self.inner, self.scale = flow, nn.Parameter(torch.ones(()))

    def first_flow(self):
        return self.inner

    def run(self, x, **options):
        flown = self.inner.run(x, **options)
        return anode.Outcome(self.scale * flown.prediction, flown.features, flown.solution, flown.integrals)


class Count(anode.Callback):
    """A callback that counts iterations, and ends training after some."""

    def __init__(self, most=10**9):
        self.most, self.seen = most, 0

    def iteration(self, training):
        self.seen += 1
        if self.seen >= self.most:
            training.stop("that is enough")


def sgd(parameters):
    """An optimizer."""
    return torch.optim.SGD(parameters, lr=0.05)


def halving(optimizer):
    """A schedule."""
    return torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
