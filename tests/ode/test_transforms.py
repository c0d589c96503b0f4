import warnings

import pytest
import torch

import anode


def decay(x, **settings):
    return anode.solve(lambda t, y: -y * y, x, (0.0, 1.0), rtol=1e-8, atol=1e-8, **settings).y1


def points(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_grad_of_torch_func_differentiates_a_solve():
    x = points(3)
    gradient = torch.func.grad(lambda x: decay(x).sum())(x)
    torch.testing.assert_close(gradient, (1 + x) ** -2, rtol=1e-5, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own, in forward mode
def test_jacobians_and_hessians_of_torch_func_differentiate_a_solve():
    x = points(3)
    torch.testing.assert_close(torch.func.jacrev(decay)(x), torch.diag((1 + x) ** -2), rtol=1e-5, atol=1e-12)
    hessian = torch.func.hessian(lambda x: decay(x).sum())(x)
    torch.testing.assert_close(hessian, torch.diag(-2 * (1 + x) ** -3), rtol=1e-4, atol=1e-12)


def test_the_continuous_adjoint_is_refused_within_torch_func_by_name():
    with pytest.raises(ValueError, match='gradient: takes "stored"'):
        torch.func.grad(lambda x: decay(x, gradient="continuous").sum())(points(3))


def test_vmap_over_a_solve_says_what_to_do_instead():
    with pytest.raises(RuntimeError, match='control="sample"'):
        torch.vmap(decay)(points(3, 2))
    with pytest.raises(RuntimeError, match='control="sample"'):
        torch.vmap(torch.func.grad(lambda x: decay(x).sum()))(points(3, 2))


def test_jit_trace_fails_with_a_sentence():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match=r"torch\.jit\.trace cannot record a solve"):
            torch.jit.trace(anode.NeuralODE(2, 1), torch.rand(4, 2))


@pytest.mark.parametrize("solver", ["solve", "odeint", "odeint_adjoint"])
def test_torch_compile_leaves_solves_out_of_its_graphs(solver):
    # The backend counts operations instead of compiling them, which would take a minute and a compiler.
    seen = []

    def backend(graph, inputs):
        seen.extend(node.target for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    field = torch.nn.Linear(2, 2)

    def model(x):
        x = x * 2
        if solver == "solve":
            y = anode.solve(lambda t, y: field(y).tanh(), x, (0.0, 1.0)).check().y1
        else:
            call = getattr(anode, solver)
            settings = {} if solver == "odeint" else {"adjoint_params": tuple(field.parameters())}
            y = call(lambda t, y: field(y).tanh(), x, torch.tensor([0.0, 1.0]), **settings)[-1]
        return y.sum()

    x = torch.rand(3, 2)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        compiled = torch.compile(model, backend=backend)(x)
    torch.testing.assert_close(compiled, model(x))
    assert len(seen) <= 4
    assert not [str(w.message) for w in heard if "Dynamo" in str(w.message)]
