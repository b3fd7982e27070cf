"""Plot the importances of columns found by a learned metric."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from ntkit._validation import check_int, message
from ntkit.display._common import axes_or_new, check_matplotlib, number_array


class ImportanceDisplay:
    """Bar chart of the importances of columns, with the largest on top.

    Create it with :meth:`from_estimator` or :meth:`from_values`. All parameters are stored as attributes.

    Parameters
    ----------
    importances : ndarray of shape (n_columns,)
        Share of each column.
    names : list of str
        Names of the columns.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    bars_ : matplotlib BarContainer

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import LearnedMetric
    >>> from ntkit.display import ImportanceDisplay
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 4))
    >>> metric = LearnedMetric(kernel="gaussian", random_state=0).fit(X, np.sin(X[:, 2]))
    >>> display = ImportanceDisplay.from_estimator(metric, names=["a", "b", "c", "d"])
    >>> display.names[int(np.argmax(display.importances))]
    'c'
    """

    def __init__(self, *, importances: Any, names: Any):
        self.importances = importances
        self.names = names

    def plot(self, ax: Any = None, *, max_columns: int = 20, **kwargs: Any) -> Self:
        """Draw the bars.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        max_columns : int, default=20
            Number of columns to show; a last bar shows the sum of the others.
        **kwargs
            Passed to ``Axes.barh``.

        Returns
        -------
        self
        """
        name = type(self).__name__
        check_int(max_columns, "max_columns", f"{name}.plot", minimum=1)
        new = ax is None
        self.ax_ = axes_or_new(ax, f"{name}.plot")
        order = np.argsort(-self.importances, kind="stable")
        shown = order[:max_columns]
        labels = [str(self.names[i]) for i in shown]
        values = [float(self.importances[i]) for i in shown]
        if len(order) > len(shown):
            labels.append(f"{len(order) - len(shown)} others")
            values.append(float(self.importances[order[max_columns:]].sum()))
        self.bars_ = self.ax_.barh(range(len(values)), values, **({"color": "C0"} | kwargs))
        self.ax_.set_yticks(range(len(values)), labels)
        self.ax_.invert_yaxis()
        self.ax_.set(xlabel="share of the changes in the prediction", xlim=(0, None))
        self.ax_.spines[["top", "right"]].set_visible(False)
        self.figure_ = self.ax_.figure
        if new:
            self.figure_.set_size_inches(6.4, 1.0 + 0.26 * len(values))
        return self

    @classmethod
    def from_estimator(cls, estimator: Any, *, names: Any = None, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the importances of a fitted estimator.

        Parameters
        ----------
        estimator : LearnedMetric, AdaptiveFeatures, FeatureRidge, FeatureRidgeSearch, their classifiers or Pipeline
            A fitted estimator. For a Pipeline, its last step is used.
        names : list of str, default=None
            Names of the columns; None: the column names of the data frame passed to `fit`, or x0, x1, ….
        ax : matplotlib Axes, default=None
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        ImportanceDisplay
        """
        check_matplotlib(f"{cls.__name__}.from_estimator")
        last = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
        check_is_fitted(last)
        found = getattr(last, "feature_importances_", None)
        if found is None:
            rule = "a model whose features have learned a metric, such as FeatureRidge() fitted on a table"
            raise ValueError(message(f"{cls.__name__}.from_estimator", "estimator", rule, estimator))
        if names is None:
            names = getattr(last, "feature_names_in_", None)
        return cls.from_values(found, names=names, ax=ax, **kwargs)

    @classmethod
    def from_values(cls, importances: Any, *, names: Any = None, ax: Any = None, **kwargs: Any) -> Self:
        """Draw given importances.

        Parameters
        ----------
        importances : array of shape (n_columns,)
        names : list of str, default=None
            Names of the columns; None: x0, x1, ….
        ax : matplotlib Axes, default=None
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        ImportanceDisplay
        """
        owner, rule = f"{cls.__name__}.from_values", "a 1-D array of finite numbers ≥ 0"
        values = number_array(
            importances, "importances", owner, lambda a: a.ndim == 1 and np.isfinite(a).all() and (a >= 0).all(), rule
        )
        names = [f"x{i}" for i in range(len(values))] if names is None else list(names)
        if len(names) != len(values):
            raise ValueError(message(owner, "names", f"a list of {len(values)} names", names))
        return cls(importances=values, names=names).plot(ax, **kwargs)
