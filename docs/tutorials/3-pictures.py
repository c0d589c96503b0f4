# %% [markdown]
# # Pictures
#
# `ImageNeuralODE` is a flow of convolutions with a linear map behind it. `augment=p` appends p channels of zeros. This
# tutorial uses the 8 x 8 digits of scikit-learn, so nothing is downloaded. The same code works for MNIST, CIFAR-10,
# SVHN and Tiny ImageNet, see [Image data](../data.md).

# %%
import matplotlib.pyplot as plt
import torch

import anode

train, test = anode.images.load("digits"), anode.images.load("digits", "test")
fig, axes = plt.subplots(2, 8, figsize=(8, 2.2))
for ax, image, label in zip(axes.flat, train.images, train.labels, strict=False):
    ax.imshow(image[0], cmap="gray_r")
    ax.set_title(int(label), fontsize=9)
    ax.axis("off")

# %% [markdown]
# ## Train
#
# The labels are whole numbers, so the loss is the cross-entropy, and accuracies are recorded. Images stay bytes in
# memory. The model scales each batch to [0, 1].

# %%
torch.manual_seed(0)
model = anode.ImageNeuralODE(train.shape, train.classes, filters=16, augment=5)
snapshots = anode.Snapshots(test.images[:200], at=[0, 20, 90])
history = anode.fit(model, train, epochs=4, lr=5e-3, validation=test, snapshots=snapshots, progress=False)
print(history.validation_accuracy.round(3))

# %%
history.plot()

# %% [markdown]
# ## Mistakes
#
# `model(x)` returns one logit per class.

# %%
with torch.no_grad():
    guessed = model(test.images).argmax(1)
wrong = (guessed != test.labels).nonzero().flatten()[:8]
fig, axes = plt.subplots(1, len(wrong), figsize=(8, 1.5))
for ax, i in zip(axes, wrong, strict=True):
    ax.imshow(test.images[i, 0], cmap="gray_r")
    ax.set_title(f"{int(test.labels[i])} → {int(guessed[i])}", fontsize=9)
    ax.axis("off")

# %% [markdown]
# ## What the flow does to one picture
#
# A trajectory has the shape [times, images, channels, height, width]. The flow takes scaled images. The first row is
# the channel of the picture. The others began as zeros.

# %%
with torch.no_grad():
    states = model.flow.trajectory(test.scaled()[:1], 6)[:, 0]
fig, axes = plt.subplots(3, 6, figsize=(8, 4), layout="constrained")
for row, channel in zip(axes, (0, 1, 2), strict=True):
    for ax, state, t in zip(row, states[:, channel], torch.linspace(0, 1, 6), strict=True):
        ax.imshow(state, cmap="RdBu", vmin=-2, vmax=2)
        ax.set_title(f"t = {t:.1f}", fontsize=9)
        ax.axis("off")

# %% [markdown]
# ## What training does to the features
#
# Snapshots record the features of some images on the way. Here they are in the plane of their two principal
# components.


# %%
def plane(features):
    flat = torch.as_tensor(features).flatten(1)
    return (flat - flat.mean(0)) @ torch.pca_lowrank(flat, 2)[2]


torch.manual_seed(0)
tiles = [plane(snapshot.features) for snapshot in history.snapshots]
titles = [f"iteration {snapshot.iteration}, NFE {snapshot.nfe}" for snapshot in history.snapshots]
figure = anode.plots.strip(tiles, test.labels[:200], titles)
anode.plots.class_legend(figure, test.labels[:200], [str(digit) for digit in range(10)])
figure

# %% [markdown]
# ## Exercise
#
# Train a plain neural ODE (`augment=0`) with as many weights: raise `filters` until `sum(p.numel() for p in
# model.parameters())` is the same. Compare accuracies and `history.nfe`. Then run `anode data fetch mnist` and try 10
# minutes of MNIST: pass `minutes=10` and `checkpoint="mnist"`.
