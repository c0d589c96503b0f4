# %% [markdown]
# # A table with scikit-learn
#
# `ANODEClassifier` and `ANODERegressor` work like every other scikit-learn estimator. This tutorial classifies a
# table, puts the estimator into a pipeline and a search, and looks at what it learned.

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
# Both separate the circles. The plain neural ODE (left) cannot lift the inner circle out, so a channel stays open, and
# the solver needs more evaluations.
#
# ## Fit and score
#
# Data frames keep their column names. Columns are scaled inside the estimator.

# %%
X, y = load_wine(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
model = anode.ANODEClassifier(random_state=0).fit(X_train, y_train)
print(f"accuracy {model.score(X_test, y_test):.3f}")
model.predict_proba(X_test[:3]).round(3)

# %% [markdown]
# `loss_curve_` has the loss of every epoch, `history_` everything else.

# %%
model.history_.plot()

# %% [markdown]
# ## Stop early
#
# With `early_stopping=True`, a tenth of the rows is set aside. Training stops when their loss has not improved for
# `patience` epochs.

# %%
stopped = anode.ANODEClassifier(epochs=300, early_stopping=True, patience=10, random_state=0).fit(X_train, y_train)
print(f"{stopped.n_iter_} epochs, accuracy {stopped.score(X_test, y_test):.3f}")

# %% [markdown]
# ## A pipeline and a search

# %%
pipe = make_pipeline(QuantileTransformer(n_quantiles=50), anode.ANODEClassifier(epochs=10, random_state=0))
search = GridSearchCV(pipe, {"anodeclassifier__augment": [0, 5], "anodeclassifier__hidden": [16, 32]}, cv=3)
search.fit(X_train, y_train)
print(search.best_params_, f"{search.score(X_test, y_test):.3f}")

# %% [markdown]
# ## What was learned
#
# `transform` returns the features at the end of the flow. `plot_flow` draws how rows get there, in the plane of two
# principal components.

# %%
fig, ax = plt.subplots(figsize=(5, 4))
model.plot_flow(X_test, y_test, ax=ax)
print(model.transform(X_test).shape)

# %% [markdown]
# ## A regression
#
# `ANODERegressor` also scales the targets. The score is R².

# %%
X, y = load_diabetes(return_X_y=True)
scores = cross_val_score(anode.ANODERegressor(epochs=30, random_state=0), X, y, cv=3)
print(f"R² {scores.mean():.2f} ± {scores.std():.2f}")

# %% [markdown]
# ## Save and load
#
# A saved estimator is two files, JSON and safetensors. Loading executes nothing that is in them.

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
# anode.Solver(method="rk4", step_size=0.25)]}`. [scikit-learn estimators](../estimators.md) has the table for eight
# datasets.
