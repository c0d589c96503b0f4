# %% [markdown]
# # Many models at once
#
# One small model cannot keep a processor busy. anode stacks models of the same shape and trains them as one program.
# Each member has its own weights, data order, learning rate and step size, and ends up as if trained alone. The
# figure shows twenty training runs that took a few seconds together.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import torch

import anode

train, test = anode.datasets.load("moons", points=400, noise=0.2, seed=0).split(0.75)
models = anode.seeded(lambda: anode.NeuralODE(2, 1, augment=1), seeds=range(20))
history = anode.fit(models, train, epochs=20, lr=1e-2, validation=test, progress=False)

fig, ax = plt.subplots(figsize=(6, 3))
ax.semilogy(history.validation, color="tab:blue", alpha=0.4)
_ = ax.set(xlabel="epoch", ylabel="validation loss", title="20 models, trained as one")

# %% [markdown]
# ## Compare with training alone
#
# Member 3 uses seed 3 for its weights and for its data order. Train it alone, and compare.


# %%
def seconds(model, seed):
    begin = time.perf_counter()
    found = anode.fit(model, train, epochs=20, lr=1e-2, seed=seed, progress=False)
    return time.perf_counter() - begin, found


torch.manual_seed(3)
alone, by_itself = seconds(anode.NeuralODE(2, 1, augment=1), seed=3)
together, _ = seconds(anode.seeded(lambda: anode.NeuralODE(2, 1, augment=1), seeds=range(20)), seed=0)
print(f"largest difference of the losses: {np.abs(by_itself.loss - history.loss[:, 3]).max():.1e}")
print(f"one model alone {alone:.2f} s, 20 models together {together:.2f} s")

# %% [markdown]
# ## Estimate uncertainty
#
# Predictions are uncertain where the members disagree. A stack takes inputs of shape [members, points, features].

# %%
xs = torch.linspace(-2.5, 3.5, 60)
grid = torch.cartesian_prod(xs, xs).flip(1)
with torch.no_grad():
    votes = models(grid.expand(20, -1, -1))[..., 0].reshape(20, 60, 60)
fig, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, values, title in zip(axes, (votes.mean(0), votes.std(0)), ("mean", "standard deviation"), strict=True):
    mesh = ax.pcolormesh(xs, xs, values, cmap="RdBu" if title == "mean" else "viridis")
    ax.plot(*train.x.T, "k.", markersize=2)
    ax.set_title(title)
    fig.colorbar(mesh, ax=ax)

# %% [markdown]
# ## Search over settings
#
# Members may have different learning rates. One call of `fit` therefore searches over them, with four seeds each.

# %%
rates = [1e-3, 3e-3, 1e-2, 3e-2]
trials = anode.seeded(lambda: anode.NeuralODE(2, 1, augment=1), seeds=[0, 1, 2, 3] * len(rates))
found = anode.fit(trials, train, epochs=20, lr=[lr for lr in rates for _ in range(4)], validation=test, progress=False)
for lr, losses in zip(rates, found.validation[-1].reshape(len(rates), 4), strict=True):
    print(f"lr {lr:<6}  validation loss {losses.mean():.4f} ± {losses.std():.4f}")

# %% [markdown]
# Settings that change the shape of a model, such as `augment` or `hidden`, need one stack per value.

# %%
for augment in (0, 1, 5):
    trials = anode.seeded(lambda augment=augment: anode.NeuralODE(2, 1, augment=augment), seeds=range(4))
    found = anode.fit(trials, train, epochs=20, lr=1e-2, validation=test, progress=False)
    loss, nfe = found.validation[-1].mean(), found.nfe[-1].mean()
    print(f"augment {augment}  validation loss {loss:.4f}  evaluations {nfe:.0f}")

# %% [markdown]
# ## Keep the best model

# %%
best = anode.unstack(models)[int(history.validation[-1].argmin())]
with torch.no_grad():
    print(f"accuracy {(best(test.x).sign() == test.y).float().mean():.3f}")

# %% [markdown]
# ## Exercise
#
# Search over `weight_decay`. `anode.fit` takes one value per call, so write a loop. Does more weight decay make the
# spread of the members larger or smaller? `anode search` runs the paper's grid this way, and can also search with
# Optuna: see [Hyperparameter search](../search.md).
