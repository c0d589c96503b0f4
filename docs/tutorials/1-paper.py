# %% [markdown]
# # The paper in ten minutes
#
# A neural ODE moves points along the paths of dh/dt = f(t, h), where f is a small network. Paths cannot cross. A
# neural ODE therefore cannot swap two points on a line, and cannot carry a whole disc out of the ring around it.
# *Augmented Neural ODEs* (Dupont, Doucet and Teh, 2019) append zeros to every point. In this larger space, the paths
# have room to pass each other.
#
# The data are a disc and a ring around it. The target is -1 in the disc and +1 in the ring.

# %%
import matplotlib.pyplot as plt
import torch

import anode

data = anode.datasets.load("g", dim=2, inner=200, outer=400)
fig, ax = plt.subplots(figsize=(4, 4))
anode.plots.scatter(ax, data.x, data.labels)
ax.set_aspect("equal")
anode.plots.class_legend(ax, data.labels, ["disc", "ring"], loc="upper right")

# %% [markdown]
# ## Train both models
#
# `augment=0` is the plain neural ODE (NODE). `augment=1` appends one zero to every point (ANODE). `anode.seeded`
# builds five models of each kind from five seeds. `anode.fit` trains the five together. Each ends up as if trained
# alone.

# %%
histories, models = {}, {}
for name, augment in (("NODE", 0), ("ANODE", 1)):
    models[name] = anode.seeded(lambda augment=augment: anode.NeuralODE(2, 1, augment=augment), seeds=range(5))
    histories[name] = anode.fit(models[name], data, epochs=40, lr=5e-3, progress=False)

for name, history in histories.items():
    print(f"{name:5}  loss {history.loss[-10:].mean():.4f}   evaluations {history.nfe[-10:].mean():.0f}")

# %% [markdown]
# The augmented models reach a lower loss, and the solver evaluates their field less often. The curves show the mean
# of the five models, with a band of one standard deviation.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
epochs = range(1, 41)
loss = {name: history.per_epoch("loss") for name, history in histories.items()}
nfe = {name: history.per_epoch("nfe") for name, history in histories.items()}
anode.plots.curves(left, epochs, loss, xlabel="epoch", ylabel="loss", log=True)
anode.plots.curves(right, epochs, nfe, xlabel="epoch", ylabel="function evaluations")

# %% [markdown]
# ## Plot the flows
#
# Each path starts at a hollow dot and ends at a full dot. The NODE squeezes the disc out through a gap in the ring.
# The ANODE lifts it out of the plane.

# %%
fig = plt.figure(figsize=(9, 4.5), layout="constrained")
left, right = fig.add_subplot(1, 2, 1), fig.add_subplot(1, 2, 2, projection="3d")
node, augmented = (anode.unstack(models[name])[0] for name in ("NODE", "ANODE"))
with torch.no_grad():
    anode.plots.flow_2d(left, node.flow.trajectory(data.x[::4], 40), data.labels[::4])
    anode.plots.flow_3d(right, augmented.flow.trajectory(data.x[::4], 40), data.labels[::4])

# %% [markdown]
# ## Is the solver accurate enough?
#
# A flow can be solved backwards. If this does not recover the inputs, the tolerance is too loose, and the number of
# evaluations means little. `certify` finds the loosest tolerance that recovers the inputs to within 1 %.

# %%
for name, model in (("NODE", node), ("ANODE", augmented)):
    certificate = model.flow.certify(data.x[:256])
    print(f"{name:5}  tolerance {certificate.tolerance:.0e}   evaluations {certificate.nfe:.0f}")

# %% [markdown]
# ## An impossible task in one dimension
#
# `g_1d` swaps -1 and 1. On a line, the two paths would have to cross. The best that a flow can do is to map both
# points close to 0, with a loss of 1. With one more dimension, the paths go around each other. These models have no
# linear map after the flow: the first coordinate is the prediction.


# %%
def first(prediction, target):
    return (prediction[:, :1] - target).square()


swap = anode.datasets.load("g_1d")
for augment in (0, 1):
    torch.manual_seed(0)
    flow = anode.Flow(anode.MLPField(1 + augment), augment=augment)
    history = anode.fit(flow, swap, epochs=300, lr=1e-2, loss=first, progress=False)
    print(f"augment={augment}  loss {history.loss[-1]:.4f}")

# %% [markdown]
# ## Exercise
#
# Train with `augment=5` instead of 1. Does the loss fall further? Which tolerance does `certify` find? Then make the
# task harder: `anode.datasets.load("g", dim=4)` is a ball within a shell in four dimensions. How many zeros does it
# need?
#
# `anode reproduce` runs all experiments of the paper. [Reproducing the paper](../reproduce.md) shows the results.
