# %% [markdown]
# # Images
#
# `ImageNeuralODE` is a convolutional flow followed by a linear map. `augment=p` appends p channels of zeros. This
# tutorial uses the 8 x 8 digits of scikit-learn, so it needs no download. The same code works for MNIST, CIFAR-10,
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
# The labels are integers, so the loss is the cross-entropy, and `fit` also records accuracies. Images stay `uint8` in
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
# ## Look at the mistakes
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
# ## Follow one image through the flow
#
# A trajectory has the shape [times, images, channels, height, width]. Pass scaled images to the flow. The first row
# of the figure is the channel of the image. The other two rows are added channels, which start as zeros.

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
# ## Watch the features during training
#
# Snapshots record the features of some images during training. The figure shows their first two principal components.


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
# Train a plain neural ODE (`augment=0`) with the same number of weights: raise `filters` until `sum(p.numel() for p
# in model.parameters())` is about equal. Compare the accuracies and `history.nfe`. Then run `anode data fetch mnist`
# and train on MNIST for 10 minutes: pass `minutes=10` and `checkpoint="mnist"`.
