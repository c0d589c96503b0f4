# %% [markdown]
# # An ODE layer in your own training loop
#
# You do not need `anode.fit`. This tutorial uses `anode.solve` as a layer in a plain PyTorch loop. It covers output
# times, tolerances, function evaluations, gradients and events. The first figure shows a bouncing ball: an event ends
# each solve when the ball reaches the floor.

# %%
import matplotlib.pyplot as plt
import torch

import anode


def fall(t, state):
    speed = state[1]
    return torch.stack([speed, torch.full_like(speed, -9.81)])


t, state, times, heights = 0.0, torch.tensor([2.0, 0.0], dtype=torch.float64), [], []
for _ in range(5):
    bounce = anode.solve(fall, state, (t, torch.inf), event=lambda t, y: y[0], dense=True)
    at = torch.linspace(t, float(bounce.t1), 40, dtype=torch.float64)
    times.append(at)
    heights.append(bounce(at)[:, 0])
    t, state = float(bounce.t1) + 1e-9, torch.stack([torch.tensor(1e-9), -0.8 * bounce.y1[1]])

fig, ax = plt.subplots(figsize=(7, 2.5))
ax.plot(torch.cat(times), torch.cat(heights))
_ = ax.set(xlabel="time in s", ylabel="height in m")

# %% [markdown]
# ## Make data
#
# `f(t, y)` is any function or module. `save_at` lists the output times. Gradients reach the parameters of `f`, `y0`
# and the times.
#
# The data are noisy measurements of a damped pendulum at irregular times.


# %%
def pendulum(t, y):
    angle, speed = y.unbind(-1)
    return torch.stack([speed, -2.0 * torch.sin(angle) - 0.2 * speed], -1)


torch.manual_seed(0)
y0 = torch.tensor([[1.5, 0.0], [-0.5, 1.0], [0.8, -0.6]])
seen_at = torch.cat([torch.zeros(1), torch.rand(40).sort().values * 8])
truth = anode.solve(pendulum, y0, (0.0, 8.0), save_at=seen_at, rtol=1e-6, atol=1e-6).ys
seen = truth + 0.05 * torch.randn_like(truth)
seen.shape  # [times, trajectories, 2]

# %% [markdown]
# ## Train
#
# The model is a network that predicts the derivative. This is a standard PyTorch training loop. The noise has a
# variance of 0.0025, so the loss cannot fall far below that.

# %%
torch.manual_seed(0)
field = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
optimizer = torch.optim.Adam(field.parameters(), lr=2e-2)
solver = anode.Solver("tsit5", rtol=1e-3, atol=1e-3)
losses, evaluations = [], []
for _ in range(400):
    solution = anode.solve(field, seen[0], (0.0, 8.0), save_at=seen_at, solver=solver).check()
    loss = (solution.ys - seen).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    evaluations.append(solution.stats.nfe)
print(f"loss {losses[0]:.3f} to {losses[-1]:.4f}, evaluations {evaluations[0]} to {evaluations[-1]}")
print(solution)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.semilogy(losses)
left.set(xlabel="iteration", ylabel="loss")
with torch.no_grad():
    at = torch.linspace(0, 8, 200)
    path = anode.solve(field, seen[0], (0.0, 8.0), save_at=at, solver=solver).ys
right.plot(at, path[:, :, 0])
right.plot(seen_at, seen[:, :, 0], "k.", markersize=3)
_ = right.set(xlabel="time", ylabel="angle")

# %% [markdown]
# ## Choose a tolerance
#
# A tighter tolerance costs more evaluations. Solve the trained field with several tolerances, and compare with a very
# tight solve.

# %%
with torch.no_grad():
    start = seen[0].double()
    exact = anode.solve(field.double(), start, (0.0, 8.0), rtol=1e-10, atol=1e-10).y1
    for tolerance in (1e-1, 1e-2, 1e-3, 1e-5, 1e-7):
        solution = anode.solve(field, start, (0.0, 8.0), rtol=tolerance, atol=tolerance)
        error = (solution.y1 - exact).abs().max()
        print(f"rtol {tolerance:.0e}   evaluations {solution.stats.nfe:4}   error {error:.1e}")

# %% [markdown]
# ## Differentiate the time of an event
#
# Gradients also reach the time of an event. When does the first pendulum pass the lowest point, and how does this
# time change with the initial angle?

# %%
start = torch.tensor([1.5, 0.0], dtype=torch.float64, requires_grad=True)
time, _ = anode.odeint_event(pendulum, start, torch.tensor(0.0, dtype=torch.float64), event_fn=lambda t, y: y[0])
time.backward()
print(f"at t = {time.item():.4f}; a start 0.1 higher adds {0.1 * start.grad[0].item():.4f}")

# %% [markdown]
# ## Exercise
#
# Remove half of the measurements between t = 3 and t = 5 and fit again. Then replace the field by
# `anode.Flow(anode.MLPField(2 + 1), augment=1)`. What changes? `anode.explain(field, y0)` shows how the engine
# compiles a field. [The solver](../solver.md) describes every setting.
