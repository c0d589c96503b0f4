# %% [markdown]
# # The paper in ten minutes
#
# A neural ODE moves points along the paths of dh/dt = f(t, h), where f is a small network. Paths cannot cross, so a
# neural ODE cannot swap two points of a line, and cannot carry a whole disc out of the ring around it. *Augmented
# Neural ODEs* (Dupont, Doucet and Teh, 2019) append zeros to every point. In the larger space the paths have room.
#
# This is the data: a disc and a ring around it. The target is -1 inside and +1 outside.

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
# ## Train both
#
# `augment=0` is the plain neural ODE (NODE). `augment=1` appends one zero to every point (ANODE). `anode.seeded`
# builds five models of each kind from five seeds. `anode.fit` trains them together, each as if it were alone.

# %%
histories, models = {}, {}
for name, augment in (("NODE", 0), ("ANODE", 1)):
    models[name] = anode.seeded(lambda augment=augment: anode.NeuralODE(2, 1, augment=augment), seeds=range(5))
    histories[name] = anode.fit(models[name], data, epochs=40, lr=5e-3, progress=False)

for name, history in histories.items():
    print(f"{name:5}  loss {history.loss[-10:].mean():.4f}   evaluations {history.nfe[-10:].mean():.0f}")

# %% [markdown]
# The augmented models have a lower loss, and the solver evaluates their field less often. The curves show the mean of
# the five models and a band of one standard deviation.

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
epochs = range(1, 41)
loss = {name: history.per_epoch("loss") for name, history in histories.items()}
nfe = {name: history.per_epoch("nfe") for name, history in histories.items()}
anode.plots.curves(left, epochs, loss, xlabel="epoch", ylabel="loss", log=True)
anode.plots.curves(right, epochs, nfe, xlabel="epoch", ylabel="function evaluations")

# %% [markdown]
# ## Look at the flows
#
# A hollow dot is where a point starts, and a full dot is where it ends. The NODE squeezes the disc out through a gap
# in the ring. The ANODE lifts it out of the plane.

# %%
fig = plt.figure(figsize=(9, 4.5), layout="constrained")
left, right = fig.add_subplot(1, 2, 1), fig.add_subplot(1, 2, 2, projection="3d")
node, augmented = (anode.unstack(models[name])[0] for name in ("NODE", "ANODE"))
with torch.no_grad():
    anode.plots.flow_2d(left, node.flow.trajectory(data.x[::4], 40), data.labels[::4])
    anode.plots.flow_3d(right, augmented.flow.trajectory(data.x[::4], 40), data.labels[::4])

# %% [markdown]
# ## Can the solver be trusted?
#
# A flow can be solved backwards. If the inputs do not come back, the tolerance is too loose and the number of
# evaluations means little. `certify` finds the loosest tolerance with which they come back to 1 %.

# %%
for name, model in (("NODE", node), ("ANODE", augmented)):
    certificate = model.flow.certify(data.x[:256])
    print(f"{name:5}  tolerance {certificate.tolerance:.0e}   evaluations {certificate.nfe:.0f}")

# %% [markdown]
# ## In one dimension it is impossible
#
# `g_1d` swaps -1 and 1. On a line the two paths would have to cross, so the best that a flow can do is to map both
# close to 0, with a loss of 1. With one more dimension they go around each other. These models have no linear map
# behind the flow: the first coordinate is the prediction.


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
# Train with `augment=5` instead of 1. Does the loss fall further? What does `certify` say? Then make the task harder:
# `anode.datasets.load("g", dim=4)` is a ball within a shell in four dimensions. How many zeros does it need?
#
# `anode reproduce` runs all experiments of the paper. [Re-running the paper](../reproduce.md) has the results.
