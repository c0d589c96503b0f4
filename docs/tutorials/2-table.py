# %% [markdown]
# # A table with scikit-learn
#
# `ANODEClassifier` and `ANODERegressor` work like every other scikit-learn estimator. In this tutorial you classify a
# table, use the estimator in a pipeline and a grid search, and plot what it learned.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes, load_wine, make_circles
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer

import anode

X, y = make_circles(400, factor=0.5, noise=0.1, random_state=0)
xs = np.linspace(-1.5, 1.5, 80)
grid = np.stack(np.meshgrid(xs, xs), -1).reshape(-1, 2)
fig, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
for ax, augment in zip(axes, (0, 1), strict=True):
    model = anode.ANODEClassifier(augment=augment, random_state=0).fit(X, y)
    anode.plots.regions(ax, xs, xs, model.predict(grid).reshape(80, 80), X, y)
    ax.set_title(f"augment={augment}: {model.n_function_evaluations_:.0f} evaluations")

# %% [markdown]
# Both models separate the circles. The plain neural ODE (left) cannot lift the inner circle out of the plane. It
# leaves a channel open, and the solver needs more evaluations.
#
# ## Fit and score
#
# The estimator accepts data frames and remembers their column names. It also scales the columns.

# %%
X, y = load_wine(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
model = anode.ANODEClassifier(random_state=0).fit(X_train, y_train)
print(f"accuracy {model.score(X_test, y_test):.3f}")
model.predict_proba(X_test[:3]).round(3)

# %% [markdown]
# `loss_curve_` has the loss of every epoch, and `history_` has all other records of training.

# %%
model.history_.plot()

# %% [markdown]
# ## Stop early
#
# With `early_stopping=True`, the estimator sets aside a tenth of the rows for validation. Training stops when the
# validation loss has not improved for `patience` epochs.

# %%
stopped = anode.ANODEClassifier(epochs=300, early_stopping=True, patience=10, random_state=0).fit(X_train, y_train)
print(f"{stopped.n_iter_} epochs, accuracy {stopped.score(X_test, y_test):.3f}")

# %% [markdown]
# ## Use a pipeline and a grid search

# %%
pipe = make_pipeline(QuantileTransformer(n_quantiles=50), anode.ANODEClassifier(epochs=10, random_state=0))
search = GridSearchCV(pipe, {"anodeclassifier__augment": [0, 5], "anodeclassifier__hidden": [16, 32]}, cv=3)
search.fit(X_train, y_train)
print(search.best_params_, f"{search.score(X_test, y_test):.3f}")

# %% [markdown]
# ## Plot the flow
#
# `transform` returns the features at the end of the flow. `plot_flow` draws the paths of the rows, projected onto two
# principal components.

# %%
fig, ax = plt.subplots(figsize=(5, 4))
model.plot_flow(X_test, y_test, ax=ax)
print(model.transform(X_test).shape)

# %% [markdown]
# ## Regression
#
# `ANODERegressor` also scales the targets. The score is R².

# %%
X, y = load_diabetes(return_X_y=True)
scores = cross_val_score(anode.ANODERegressor(epochs=30, random_state=0), X, y, cv=3)
print(f"R² {scores.mean():.2f} ± {scores.std():.2f}")

# %% [markdown]
# ## Save and load
#
# `save` writes two files, JSON and safetensors. Loading them executes no code.

# %%
import tempfile
from pathlib import Path

path = model.save(Path(tempfile.mkdtemp()) / "wine")
again = anode.ANODEClassifier.load(path)
print((again.predict(X_test) == model.predict(X_test)).all())

# %% [markdown]
# ## Exercise
#
# Compare with `sklearn.neural_network.MLPClassifier` and `RandomForestClassifier` on `load_breast_cancer`, with
# `cross_val_score`. Then search over solvers: `{"solver": [anode.Solver(method="tsit5", rtol=1e-2, atol=1e-2),
# anode.Solver(method="rk4", step_size=0.25)]}`. [scikit-learn estimators](../estimators.md) compares them on eight
# datasets.
