"""Programs as lines to read: the lines are formulas, so they can be evaluated and compared with f."""

import ast
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anode
from anode.engine import native
from anode.engine.program.listing import listing
from anode.engine.program.program import Builder

pytestmark = pytest.mark.skipif(not native.instruction_sets(), reason="there is no compiled engine")

FUNCTIONS = {name: getattr(torch, name) for name in ("tanh", "sin", "cos", "exp", "sigmoid", "relu", "abs", "sqrt")}
FUNCTIONS |= {"maximum": torch.clamp_min, "minimum": torch.clamp_max}
FUNCTIONS |= {name: getattr(torch.nn.functional, name) for name in ("silu", "gelu", "softplus", "elu", "leaky_relu")}


def flat(x):
    return torch.as_tensor(x, dtype=torch.float64).reshape(-1)


def cat(*parts):
    return torch.cat([flat(part) for part in parts])


class Arrays(ast.NodeTransformer):
    """Makes lists arrays, unless they are indices."""

    def visit_Subscript(self, node):
        self.visit(node.value)
        return node

    def visit_List(self, node):
        return ast.Call(ast.Name("array", ast.Load()), [node], [])


def evaluated(lines, t, y, tensors):
    """What the lines of a program compute for one point."""
    known = {
        **FUNCTIONS,
        **tensors,
        "t": t,
        "y": y,
        "array": flat,
        "cat": cat,
        "sum": lambda x, dim=None: x.sum() if dim is None else x.sum(dim),
        "max": lambda x, dim=None: x.max() if dim is None else x.amax(dim),
        "where": lambda c, a, b: torch.where(c != 0, a, b),
    }
    for line in lines:
        left, right = line.split(" = ", 1)
        tree = ast.fix_missing_locations(Arrays().visit(ast.parse(right, mode="eval")))
        value = torch.as_tensor(eval(compile(tree, line, "eval"), known), dtype=torch.float64)
        if size := re.fullmatch(r"(\w+) \((\d+)\)", left):
            known[size[1]] = value.expand(int(size[2]))
        else:  # a part of what is known only when all its parts are
            name, begin = re.fullmatch(r"(\w+)\[(\d+).*\]", left).groups()
            assert int(begin) == len(known.get(name, ()))
            known[name] = cat(known.get(name, ()), value)
    return known["dy"]


M, N, W = (torch.rand(*shape, dtype=torch.float64) - 0.5 for shape in ((4, 4), (5, 4), (4, 24)))
V = torch.rand(4, dtype=torch.float64)
FIELDS = {
    "a linear map": lambda t, y: y @ M + V,
    "a transposed map": lambda t, y: torch.nn.functional.linear(y, M, V),
    "a part of a matrix": lambda t, y: y * M[1] + M[:, 2] * torch.cos(t) - M[3, 0],
    "time in front": lambda t, y: torch.cat([t.expand(len(y), 1), y], 1)[:, :4] @ M,
    "time behind": lambda t, y: torch.tanh(torch.cat([y, t.expand(len(y), 1)], 1) @ N),
    "parts put together": lambda t, y: torch.tanh(torch.cat([y[:, 1:], t.expand(len(y), 1)], 1) @ M),
    "fused activations": lambda t, y: torch.nn.functional.silu(y @ M + V) * t,
    "slices": lambda t, y: torch.cat([y[:, ::2] * y[:, 1:2], y[:, :2] - 3.5], 1),
    "an order": lambda t, y: y.flip(-1) * torch.tensor([1.0, -2.0, 0.5, 4.0], dtype=torch.float64),
    "sums": lambda t, y: (y.repeat(1, 3).reshape(-1, 3, 4) * M[:3]).sum(1) - (y @ W).sum(1, keepdim=True),
    "sums of groups": lambda t, y: (y @ W).reshape(-1, 4, 6).sum(2),
    "sums across": lambda t, y: (y @ W).reshape(-1, 6, 4).sum(1) - (y @ W).reshape(-1, 4, 6).amax(2),
    "softmax": lambda t, y: torch.softmax(y, -1) / (1 + y.square()),
    "choices": lambda t, y: torch.where(y > 0.25, y, torch.clamp(y, -0.1, 0.1)) + (y <= t),
    "powers": lambda t, y: y**3 - 1 / (1 + y**2) + y.abs() ** 1.5,
    "functions with numbers": lambda t, y: torch.nn.functional.leaky_relu(y, 0.2) + torch.nn.functional.elu(y, 2.0),
    "constants": lambda t, y: torch.zeros_like(y) + V,
}


@pytest.mark.parametrize("name", FIELDS)
@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=5, max_size=5))
def test_the_lines_compute_what_f_computes(name, numbers):
    f, numbers = FIELDS[name], torch.tensor(numbers, dtype=torch.float64)
    t, y = numbers[0], numbers[1:]
    told = anode.explain(f, torch.rand(7, 4, dtype=torch.float64))
    assert told.engine.name == "native", told
    found = evaluated(told.lines, t, y, {"M": M, "N": N, "V": V, "W": W})
    torch.testing.assert_close(found, f(t, y[None])[0], rtol=1e-4, atol=1e-4)


def test_columns_are_shown_in_the_order_of_the_tensor():
    told = anode.explain(FIELDS["time behind"], torch.rand(7, 4, dtype=torch.float64))
    assert told.lines == ("dy (4) = tanh(N.T @ cat(y, t))",)


def test_a_program_prints_itself_without_names_of_tensors():
    builder = Builder(2)
    weight, bias = builder.tensor((3, 2)), builder.tensor((3,))
    hidden = builder.unary("tanh", builder.linear(builder.state(2), weight, bias))
    program = builder.finish(builder.binary("multiply", hidden[:2], builder.numbers(2.0)))
    assert str(program).splitlines() == ["v1 (3) = tanh(c0 @ y + c1)", "dy (2) = v1[0:2] * 2"]


def test_components_of_the_state_have_names_of_their_own():
    builder = Builder(3)
    state = builder.state(3)
    program = builder.finish(builder.binary("multiply", state, state[::-1]))
    (line,) = listing(program, state=[("y[0]", 1), ("y[1]", 2)])
    assert line == "dy (3) = cat(y[0], y[1]) * cat(y[1][[1, 0]], y[0])"
