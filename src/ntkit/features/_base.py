"""What all feature maps share: validation of rows of any library, names and types of their output, error estimates."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import AllOrNothing, OfRows
from ntkit._random import RandomState, seed_sequence
from ntkit._validation import check_int
from ntkit.programs import Program, run


class FeatureMap(AllOrNothing, OfRows, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class: rows in (NumPy, pandas, SciPy sparse, torch), features of the same library out."""

    n_components: int | None
    random_state: RandomState
    _on_resizing: ClassVar[dict[str, Any]] = {}
    """Parameters to set where another `n_components` is tried."""
    _learned: ClassVar[tuple[str, ...]] = ()
    """What `fit` learns from rows; with the parameters and the seed it is all that `_draw` makes the map from."""

    @abstractmethod
    def _kernel(self, X: Array) -> Array:
        """Exact kernel matrix of some rows, of which the features are an approximation."""

    def estimate_error(self, X: Any, *, n_samples: int = 1000, random_state: RandomState = None) -> float:
        """Estimate the relative error of this fitted map on your own rows: ‖Z Zᵀ − K‖_F / ‖K‖_F on a sample of them.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_rows, n_features)
        n_samples : int, default=1000
            Rows drawn from X, without replacement; all if X has no more. The exact kernel of these is computed.
        random_state : None, int, RandomState or Generator
            Draws the sample.

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> from ntkit import NTKFeatures
        >>> X = np.random.default_rng(0).standard_normal((200, 10))
        >>> features = NTKFeatures(n_components=1024, random_state=0).fit(X)
        >>> bool(features.estimate_error(X) < 0.05)
        True
        """
        from ntkit.diagnostics import kernel_error

        return kernel_error(self, X, n_samples=n_samples, random_state=random_state)

    def suggest_n_components(
        self,
        X: Any,
        target_error: float,
        *,
        n_samples: int = 500,
        maximum: int = 65536,
        random_state: RandomState = 0,
    ) -> int:
        """Find how many components bring the relative error on your own rows below a target.

        Copies of this map with 32, 64, 128, … components, five each, are tried on a sample of X until the error (see
        :meth:`estimate_error`) is below the target; what lies between the last two, if the error falls as a power of
        n_components there, is returned. This map is left as it is, and need not be fitted.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_rows, n_features)
        target_error : float > 0
        n_samples : int, default=500
            Rows drawn from X.
        maximum : int, default=65536
            Most components to try.
        random_state : None, int, RandomState or Generator, default=0
            Draws the sample and the maps tried.

        Returns
        -------
        int

        Raises
        ------
        ValueError
            If `maximum` components are too few; the message says which error they reach.

        Examples
        --------
        >>> import numpy as np
        >>> from ntkit import NTKFeatures
        >>> X = np.random.default_rng(0).standard_normal((200, 10))
        >>> bool(100 < NTKFeatures(depth=1).suggest_n_components(X, 0.02) < 4096)
        True
        """
        from ntkit.diagnostics import suggest_n_components

        return suggest_n_components(
            self, X, target_error, n_samples=n_samples, maximum=maximum, random_state=random_state
        )

    def transform(self, X: Any) -> Array:
        """Return the features of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_components)
            A torch tensor on the device of X if X is one, a Dask array with the row chunks of X if X is a Dask array
            or data frame, else a NumPy array; float32 for float32.
        """
        if _array.is_dask(X):
            from ntkit.distributed import map_rows

            check_is_fitted(self)
            return map_rows(self.transform, X, n_columns=self._n_features_out)
        return self._transform(self._check_rows(X, reset=False))

    @abstractmethod
    def _transform(self, X: Array) -> Array:
        """The features of rows that have been checked."""

    def _new_seed(self) -> np.random.SeedSequence:
        """Seed of the draws of a `fit`, remembered for files."""
        seed = seed_sequence(self.random_state, owner=type(self).__name__)
        self._seed = seed.entropy, seed.spawn_key, seed.pool_size
        return seed

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class WithProgram(FeatureMap):
    """A feature map with a program, which pickles leave out and make again from the draws."""

    batch_size: int | None
    _program: Program

    @abstractmethod
    def _emit(self) -> Program:
        """The program of the draws; parameters may have changed since `fit`."""

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_program"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_n_features_out" in state:
            self._program = self._emit()


class ProgramMap(WithProgram):
    """A feature map that is one program and learns nothing from the rows."""

    @abstractmethod
    def _draw(self, seed: np.random.SeedSequence) -> None:
        """Check the parameters and make the draws for rows of ``n_features_in_``."""

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Draw the map for rows of the size of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_samples, n_features)
            Only the number of features matters: the map is oblivious to the data.
        y : ignored

        Returns
        -------
        self
        """
        name = type(self).__name__
        with self._all_or_nothing():
            if self.batch_size is not None:
                check_int(self.batch_size, "batch_size", name, minimum=1)
            seed = self._new_seed()
            X = self._check_rows(X, reset=True)
            self._sparse = _array.is_sparse(X)
            self._draw(seed)
            self._program = self._emit()
            self._n_features_out = self._program.n_outputs
        return self

    def _transform(self, X: Array) -> Array:
        return run(self._program, (X,), batch_size=self.batch_size)
