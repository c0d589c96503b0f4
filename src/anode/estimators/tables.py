"""A transformer for scikit-learn that encodes the columns of a table, as ``anode train`` does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import _check_n_features, check_array, check_is_fitted

from anode.checks import require
from anode.data.encoding import Encoding, Number, choose, learn
from anode.data.tables import Array, Table, table_of
from anode.data.targets import check_columns


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Encode the columns of a table as numbers, exactly as ``anode train`` does.

    Numbers are scaled to mean 0 and variance 1. Texts with at most 100 distinct values become one number per value, 0
    or 1. A missing number is replaced by the median, and a further number marks it. Dates, identifiers and columns that
    never change are left out. A value that ``fit`` did not see is encoded as no category. Columns of pandas'
    categorical type are categories, whatever they hold.

    Args:
        drop: Names of columns to leave out.
        category: Names of columns that are categories even if they hold numbers.
        numeric: Names of columns that are numbers even if they look like identifiers.

    Attributes:
        encoding_: The encoding, as ``data.json`` holds it.
        left_out_: Columns that are left out by name, each with the reason.
        feature_names_in_: Names of the columns that ``fit`` saw.

    Example:
        >>> import anode, pandas
        >>> frame = pandas.DataFrame({"id": [1, 2, 3], "size": [1.5, 2.5, 5.0], "colour": ["red", "blue", "red"]})
        >>> encoder = anode.TableEncoder().fit(frame)
        >>> encoder.get_feature_names_out().tolist()
        ['size', 'colour_blue', 'colour_red']
        >>> encoder.transform(frame)[:, 1:].tolist()
        [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
        >>> encoder.left_out_
        {'id': 'numbers the rows; pass numeric=[...] to use it'}
    """

    def __init__(
        self, *, drop: Collection[str] = (), category: Collection[str] = (), numeric: Collection[str] = ()
    ) -> None:
        self.drop, self.category, self.numeric = drop, category, numeric

    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose the columns and learn their encoding.

        Args:
            X: A data frame of pandas or polars, arrays by column name, or an array, whose columns are named ``x0``,
                ``x1``, ...
            y: Ignored.

        Raises:
            ValueError: A column holds both numbers and texts, or no column is left. The message names the row.
        """
        table = self._table(X, reset=True)
        for option in ("drop", "category", "numeric"):
            named = getattr(self, option)
            require(not isinstance(named, str), option, named, f"a list of names of columns, such as [{named!r}]")
            check_columns(table, option, named)
        categories = {*self.category, *(_categorical(X) - {*self.numeric})}
        self.encoding_: Encoding = learn(table, choose(table, self.drop, categories, self.numeric))
        self.left_out_ = dict(self.encoding_.left_out)
        self.feature_names_in_ = np.array(list(table.columns), dtype=object)
        return self

    def transform(self, X: Any) -> Array:
        """Return float32 of shape [rows, values]. Columns may have any order, and other columns are ignored."""
        check_is_fitted(self)
        return self.encoding_.encode(self._table(X, reset=False))[0]

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the values: ``size``, ``size_missing``, ``colour_red``, ...

        Args:
            input_features: Ignored; the names are those that ``fit`` saw.
        """
        check_is_fitted(self)
        names: list[str] = []
        for column in self.encoding_.columns:
            each = column.name
            names += [each] if isinstance(column, Number) else [f"{each}_{text}" for text in column.categories]
            names += [f"{each}_missing"] if column.marked else []
        return np.array(names, dtype=object)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _table(self, X: Any, reset: bool) -> Table:
        """Return the table of a data frame, of arrays by column name, or of an array."""
        try:
            names = list(X if isinstance(X, Mapping) else X.columns)
        except AttributeError:
            array = check_array(X, dtype=None, ensure_all_finite=False, ensure_min_samples=1 + reset)
            _check_n_features(self, array, reset=reset)
            X = {f"x{i}": array[:, i] for i in range(array.shape[1])}
        else:
            if reset:
                self.n_features_in_ = len(names)
        return replace(table_of("X", X), in_python=True)


def _categorical(X: Any) -> set[str]:
    """Return the names of the columns of a data frame that have pandas' categorical type."""
    columns = zip(getattr(X, "columns", ()), getattr(X, "dtypes", ()), strict=True)
    return {str(name) for name, kind in columns if str(kind) == "category"}
