"""Models of raw tables: an encoder of columns and a learner in one estimator."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._estimator import AllOrNothing
from ntkit._random import RandomState
from ntkit._state import COLUMNS, Declared, Estimator, Field
from ntkit._validation import check_bool, check_int, check_real, message
from ntkit.models._features import importances
from ntkit.models.ridge import FeatureRidge, FeatureRidgeClassifier
from ntkit.models.search import FeatureRidgeSearch, FeatureRidgeSearchClassifier
from ntkit.tables import TableEncoder, read_table

_LEARNERS = ("search", "ridge")


class TableModel(AllOrNothing, Declared, BaseEstimator):
    """Base class of regression and classification of tables."""

    _search: ClassVar[type[FeatureRidgeSearch] | type[FeatureRidgeSearchClassifier]]
    _ridge: ClassVar[type[FeatureRidge] | type[FeatureRidgeClassifier]]
    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "encoder_": Estimator(("transform",)),
        "model_": Estimator(("predict",)),
    }

    def __init__(
        self,
        learner: Any = "search",
        *,
        encoder: Any = None,
        time_budget: float | None = 60.0,
        n_components: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.learner = learner
        self.encoder = encoder
        self.time_budget = time_budget
        self.n_components = n_components
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the encoder of the columns, then the learner.

        Parameters
        ----------
        X : data frame of pandas or polars, array of shape (n_samples, n_features), or path of a table
        y : array of shape (n_samples,), or name of the column of the data frame or file with the targets
        sample_weight : array of shape (n_samples,), optional
            Weights of the rows for the learner; the encoder ignores them.

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            self._check_parameters()
            X, y = self._rows_and_targets(X, y)
            learner = self._new_learner()
            self.encoder_ = self._fitted_encoder(X)
            self.n_features_in_ = self.encoder_.n_features_in_
            self.__dict__.pop("feature_names_in_", None)
            if hasattr(self.encoder_, "feature_names_in_"):
                self.feature_names_in_ = self.encoder_.feature_names_in_
            weight = {} if sample_weight is None else {"sample_weight": sample_weight}
            self.model_ = learner.fit(self.encoder_.transform(X), y, **weight)
        return self

    def _fitted_encoder(self, X: Any) -> TableEncoder:
        if isinstance(self.encoder, FrozenEstimator):
            return self.encoder.estimator
        return (TableEncoder() if self.encoder is None else clone(self.encoder)).fit(X)

    def _new_learner(self) -> Any:
        size = {} if self.n_components is None else {"n_components": self.n_components}
        if not isinstance(self.learner, str):
            return clone(self.learner).set_params(**size)
        shared: dict[str, Any] = {"progress": self.progress, "random_state": self.random_state, **size}
        if self.learner == "ridge":
            return self._ridge(**shared)
        return self._search(time_budget=self.time_budget, **shared)

    def _rows_and_targets(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows in memory and their targets; `y` may be the name of a column."""
        owner = type(self).__name__
        if y is None:
            raise ValueError(f"{owner} requires y to be passed, but the target y is None.")
        if _array.is_dask(X):
            remedy = f"{self._ridge.__name__} takes Dask collections of numbers."
            raise TypeError(message(owner, "X", "rows in memory", X, remedy))
        if isinstance(X, str | os.PathLike):
            if not isinstance(y, str):
                raise TypeError(message(f"{owner}.fit", "y", "the name of a column if X is a path", y))
            return read_table(X, y)
        if isinstance(y, str):
            columns = list(getattr(X, "columns", ()))
            if y not in columns:
                shown = ", ".join(map(str, columns[:40])) or "no names"
                raise ValueError(f"X of {owner} has no column {y!r} for the targets. Its columns are: {shown}.")
            y, X = X[y], X[[name for name in columns if name != y]]
        return X, y

    def _encoded(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        if isinstance(X, str | os.PathLike):
            X, _ = read_table(X, text=self.encoder_.text_columns_)
        return self.encoder_.transform(X)

    def _check_parameters(self) -> None:
        name = type(self).__name__
        if isinstance(self.learner, str):
            if self.learner not in _LEARNERS:
                raise ValueError(message(name, "learner", "'search', 'ridge' or an estimator", self.learner))
        elif not (hasattr(self.learner, "fit") and hasattr(self.learner, "predict")) or isinstance(self.learner, type):
            raise TypeError(message(name, "learner", "'search', 'ridge' or an estimator", self.learner))
        elif self.n_components is not None and not hasattr(self.learner, "n_components"):
            rule = f"None, because {type(self.learner).__name__} has no n_components"
            raise ValueError(message(name, "n_components", rule, self.n_components, "Omit it."))
        encoder = self.encoder.estimator if isinstance(self.encoder, FrozenEstimator) else self.encoder
        if encoder is not None and not isinstance(encoder, TableEncoder):
            raise TypeError(message(name, "encoder", "None, a TableEncoder, or a FrozenEstimator of one", self.encoder))
        if self.time_budget is not None:
            check_real(self.time_budget, "time_budget", name, minimum=0)
        if self.n_components is not None:
            check_int(self.n_components, "n_components", name, minimum=1)
        check_bool(self.progress, "progress", name)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each column of the table in the gradients of the learned function."""
        model = self._fitted("model_", "feature_importances_")
        found = importances(getattr(model, "best_estimator_", model))
        if found is None:
            raise AttributeError(
                f"This {type(self).__name__} has no feature_importances_: its learner has not learned a metric."
            )
        totals = dict.fromkeys(self.encoder_.source_names_, 0.0)
        for name, share in zip(self.encoder_.get_source_names_out(), found, strict=True):
            totals[name] += float(share)
        return np.array(list(totals.values()))

    def _fitted(self, part: str, name: str) -> Any:
        if part not in vars(self):
            raise AttributeError(f"This {type(self).__name__} has no {name} yet. Call fit first.")
        return vars(self)[part]

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        if not isinstance(self.encoder_, TableEncoder) or self.encoder_.n_features_in_ != self.n_features_in_:
            raise ValueError(f"there must be a TableEncoder for {self.n_features_in_} columns")

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class TableRegressor(MultiOutputMixin, RegressorMixin, TableModel):
    """Regression on raw tables: text, categories, dates, booleans, missing values, numbers with decimal commas.

    A :class:`~ntkit.tables.TableEncoder` converts the columns to numbers for the learner.

    Parameters
    ----------
    learner : {"search", "ridge"} or estimator
        "search": :class:`FeatureRidgeSearch`, which compares kernels within the time budget. "ridge":
        :class:`FeatureRidge` with its default features, for an answer in seconds. Or any regressor for numerical rows.
    encoder : TableEncoder, FrozenEstimator or None
        Converts columns to numbers; None: ``TableEncoder()``. A fitted encoder in scikit-learn's ``FrozenEstimator`` is
        used without refitting.
    time_budget : float or None
        Seconds for the search; None: no limit.
    n_components : int or None
        Number of features: the maximum for "search", the exact number for "ridge", the parameter `n_components` of
        another learner. None: the default of the learner.
    progress : bool
        Whether "search" and "ridge" show progress bars.
    random_state : None, int, RandomState or Generator
        Seed of "search" and "ridge".

    Attributes
    ----------
    encoder_ : TableEncoder
    model_ : estimator
        The fitted learner; it takes the encoded columns.
    feature_importances_ : ndarray of shape (n_features,)
        Share of each column of the table in the gradients of the prediction, if the learner has learned a metric.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame with names.

    Notes
    -----
    `predict` finds columns by name. Warnings report identifiers, and values that `fit` has not seen; see
    :class:`~ntkit.tables.TableEncoder`. The encoded columns, in float32, must fit in memory. For larger tables use
    ``FeatureRidge(make_pipeline(TableEncoder(), …))``, which reads files block by block.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from ntkit import TableRegressor
    >>> rng = np.random.default_rng(0)
    >>> frame = pd.DataFrame({"size": rng.uniform(20, 200, 400), "town": rng.choice(["Ulm", "Bonn", None], 400)})
    >>> frame["price"] = frame["size"] * np.where(frame["town"] == "Ulm", 3.0, 2.0)
    >>> model = TableRegressor("ridge", random_state=0).fit(frame[:300], "price")
    >>> bool(model.score(frame[300:], frame["price"][300:]) > 0.99)
    True
    """

    _search = FeatureRidgeSearch
    _ridge = FeatureRidge

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """Predict the targets of the rows of a table.

        Parameters
        ----------
        X : data frame of pandas or polars, array of shape (n_samples, n_features), or path of a table
        return_std : bool, default=False
            Whether to return standard deviations too; see :meth:`FeatureRidge.predict`.

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_targets), or two of them
        """
        Z = self._encoded(X)
        return self.model_.predict(Z, return_std=True) if return_std else self.model_.predict(Z)


class TableClassifier(ClassifierMixin, TableModel):
    """Classification on raw tables; see :class:`TableRegressor`.

    Parameters
    ----------
    learner : {"search", "ridge"} or estimator
        "search": :class:`FeatureRidgeSearchClassifier`. "ridge": :class:`FeatureRidgeClassifier`. Or any classifier for
        numerical rows.
    encoder, time_budget, n_components, progress, random_state
        As for :class:`TableRegressor`.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    encoder_, model_, feature_importances_, n_features_in_, feature_names_in_
        As for :class:`TableRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from ntkit import TableClassifier
    >>> days = pd.date_range("2024-01-01", periods=500, freq="5h")
    >>> frame = pd.DataFrame({"when": days, "dry": np.arange(500) % 3 == 0})
    >>> labels = np.where((days.hour < 12) & ~frame["dry"], "rain", "sun")
    >>> order = np.random.default_rng(0).permutation(500)
    >>> some, others = order[:400], order[400:]
    >>> model = TableClassifier("ridge", random_state=0).fit(frame.iloc[some], labels[some])
    >>> bool(model.score(frame.iloc[others], labels[others]) > 0.85)
    True
    """

    _search = FeatureRidgeSearchClassifier
    _ridge = FeatureRidgeClassifier

    @property
    def classes_(self) -> np.ndarray:
        """The classes, sorted."""
        return self._fitted("model_", "classes_").classes_

    def predict(self, X: Any) -> np.ndarray:
        """Predict the classes of the rows of a table.

        Parameters
        ----------
        X : data frame of pandas or polars, array of shape (n_samples, n_features), or path of a table

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        Z = self._encoded(X)
        return self.model_.predict(Z)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities of the classes.

        Parameters
        ----------
        X : data frame of pandas or polars, array of shape (n_samples, n_features), or path of a table

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        Z = self._encoded(X)
        return self.model_.predict_proba(Z)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of :meth:`predict_proba`.

        Parameters
        ----------
        X : data frame of pandas or polars, array of shape (n_samples, n_features), or path of a table

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        Z = self._encoded(X)
        return self.model_.predict_log_proba(Z)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return log-odds of the classes; see :meth:`FeatureRidgeClassifier.decision_function`.

        Parameters
        ----------
        X : data frame of pandas or polars, array of shape (n_samples, n_features), or path of a table

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) for two classes
        """
        Z = self._encoded(X)
        return self.model_.decision_function(Z)
