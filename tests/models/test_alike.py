import json

import torch
from torch import nn

import anode
from anode.models.alike import configuration


class Heir(nn.Linear):
    """A layer that is not registered."""

    def __init__(self, size):
        super().__init__(size, size)


def test_configurations_differ_where_models_do():
    field = nn.Linear(2, 2)
    models = [
        anode.Flow(field),
        anode.Flow(field, rtol=1e-5),
        anode.Flow(field, augment=1),
        anode.Flow(nn.Linear(2, 2, bias=False)),
        anode.Flow(Heir(1)),
        anode.Flow(nn.Sequential(Heir(1))),
        anode.Flow(nn.Sequential(Heir(1), nn.ReLU())),
    ]
    found = [json.dumps(configuration(model)) for model in models]
    assert len(set(found)) == len(found)
    assert configuration(anode.Flow(nn.Linear(2, 2))) == configuration(anode.Flow(nn.Linear(2, 2)))


def test_a_counter_in_a_module_does_not_make_it_another():
    class Counting(nn.Module):
        nfe = 0

        def forward(self, t, h):
            self.nfe += 1
            return -h

    one, other = anode.Flow(Counting()), anode.Flow(Counting())
    one(torch.rand(4, 2))
    assert configuration(one) == configuration(other)
