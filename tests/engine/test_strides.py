"""Parameters, context and states of any strides give what Python computes, also if they are replaced by others."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import anode
from anode.engine.extension import extension

pytestmark = pytest.mark.skipif(extension is None, reason="the engine was not compiled")
ROWS, DIM = 6, 3

LAYOUTS = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.t().contiguous().t(),
    "every second": lambda x: torch.stack([x, -x], -1).flatten(-2)[..., ::2],
    "within": lambda x: nn.functional.pad(x, (2, 1, 1, 2), value=7.0)[1:-2, 2:-1],
    "negative": lambda x: (-x).mul(1j).imag.neg(),
    "one row": lambda x: x[:1].expand_as(x),
    "one column": lambda x: x[:, :1].expand_as(x),
    "one number": lambda x: x[:1, :1].expand_as(x),
}
layouts = st.sampled_from(sorted(LAYOUTS))


def made(seed, rows, layout):
    generator = torch.Generator().manual_seed(seed)
    return LAYOUTS[layout](torch.randn(rows, DIM, generator=generator, dtype=torch.float64))


class Field(nn.Module):
    """Computes with each tensor directly, by views, and with what it computes from it alone."""

    def __init__(self):
        super().__init__()
        self.direct, self.alone, self.code = nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(0)), None

    def put(self, seed, direct, alone, code):
        self.direct.data, self.alone.data = made(seed, DIM, direct), made(seed + 1, DIM, alone)
        self.code = made(seed + 2, ROWS, code).requires_grad_()

    def forward(self, t, y):
        slope = y @ self.direct.t() + self.direct.reshape(-1)[:DIM] + self.direct[1] * self.code
        return torch.tanh(slope + y @ (self.alone.t() @ self.alone) + self.alone.flatten()[2] * self.code.flip(1)) * t


@settings(max_examples=20)
@given(st.lists(st.tuples(layouts, layouts, layouts, layouts), min_size=2, max_size=3))
def test_any_strides_give_what_python_computes(solves):
    f = Field()
    for seed, (direct, alone, code, state) in enumerate(solves):
        f.put(10 * seed, direct, alone, code)
        y0, found = made(seed, ROWS, state).requires_grad_(), []
        expanded = direct.startswith("one") or alone.startswith("one")
        for engine in ("auto", "torch"):
            solution = anode.solve(f, y0, (0.0, 1.0), method="rk4", step_size=0.5, gradient="stored", engine=engine)
            if engine == "auto" and seed == 0:
                assert solution.engine.name == ("torch" if expanded else "native"), solution.engine
            wanted = [y0, f.direct, f.alone, f.code]
            found.append([solution.y1, *torch.autograd.grad((solution.y1**2).sum(), wanted)])
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_masks_and_indices_may_be_expanded():
    mask = torch.tensor([True, False, True]).expand(DIM, DIM)
    order = torch.tensor([[2], [0], [1]]).expand(DIM, ROWS).t()
    y0 = made(0, ROWS, "contiguous")

    def f(t, y):
        return torch.where(mask[0], y, -y).gather(1, order) * t + y @ mask.double()

    ours, theirs = (anode.solve(f, y0, (0.0, 1.0), method="rk4", step_size=0.5, engine=e).y1 for e in ("auto", "torch"))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
