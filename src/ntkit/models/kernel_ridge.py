"""Kernel ridge regression and classification with exact kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit.models._checks import check_labels, check_targets, like_rows, winners
from ntkit.models._kernel_model import KernelModel


class KernelRidge(MultiOutputMixin, RegressorMixin, KernelModel):
    """Ridge regression with an exact kernel, directly or by preconditioned iterations.

    Solves (K + αI) c = y − b; predictions are Σ_i c_i k(x, x_i) + b, with the mean b of the targets. It is the mean of
    a Gaussian process with noise variance α. (`FeatureRidge` is for more rows.)

    Parameters
    ----------
    kernel : str, Layer or callable
        "ntk", "nngp", "cntk", "gaussian", "laplace", "matern", "polynomial", "exponential" or "dot_product"; a network
        of :mod:`ntkit.networks`; a function ``kernel(X, Y, **params)`` that returns the matrix, see
        :func:`ntkit.kernels.gram`. Or "precomputed": `fit` then takes the square kernel matrix of n rows, and `predict`
        rows of n kernel values with these.
    alpha : float ≥ 0 or array of float
        α. The best of several is taken, by the squared error on rows left out.
    solver : {"auto", "direct", "pcg", "gradient", "sketch"}
        "direct": Cholesky's factorization, O(n³). "pcg": preconditioned conjugate gradients, O(n²) for each
        iteration; the matrix is kept in memory if it fits, else computed again block by block. "gradient":
        preconditioned gradient descent (Algorithm 2 of [1]_), for comparison. "sketch": features and a sketch of their
        rows (Theorem 6.9 of [1]_), which solves a smaller problem to a factor 1 + ε. "auto": "direct" up to
        10 000 rows (20 000 on a CUDA device; a third of that for several α), then "pcg".
    kernel_params : dict or None
        Further parameters of the kernel, such as ``{"degree": 3}``, ``{"nu": 2.5}`` or, for a network,
        ``{"kind": "nngp"}``.
    lengthscale : float > 0 or "scale"
        ℓ of "gaussian", "laplace", "matern" and "exponential"; see :class:`~ntkit.RandomFourierFeatures`.
    depth : int or None
        Number of layers of "ntk", "nngp" and "cntk", which has two at least; None: 1, and 3 for "cntk".
    fit_intercept : bool
        Whether b is the (weighted) mean of y, or 0 as in scikit-learn's ``KernelRidge``.
    features : {"nystroem", "sketch"}, transformer or None
        Features Z of the kernel: the preconditioner of "pcg" and "gradient", and what "sketch" solves with.
        "nystroem": columns of the matrix at landmarks drawn by their leverage scores. "sketch":
        :class:`~ntkit.DotProductSketch` or :class:`~ntkit.PolynomialSketch`, which look at the norms of rows only. A
        transformer is cloned and fitted. None: no preconditioner.
    n_components : int or None
        Number of features; None: 20√n, and for iterations at most n/4.
    n_neighbors : int
        Neighbours of each row among which a preconditioner of Nyström features is corrected, if these miss more than α
        of k(x, x) on average; 0 for none. (Not for a matrix too large for a CUDA device.)
    tol : float > 0
        Relative residual ‖y − (K + αI)c‖/‖y‖ that ends the iterations.
    max_iter : int
        Most iterations for each α.
    n_selection : int
        Rows whose errors when left out choose among several α, for an iterative solver. ("direct" takes all rows.)
    sketch_size : int or None
        Rows of the sketch; None: (1 + 1/ε) s_λ, s_λ the statistical dimension of the features.
    epsilon : float > 0
        ε: how far the objective of "sketch" may exceed the least one, as a share of it.
    cache_size : float or None
        MiB of kernel values to keep in memory; None: 0.6 of what is free, on the device of X (set it where several
        fits run at a time).
    batch_size : int or None
        Most rows of kernel values to compute at a time; None: as many as suit the machine.
    progress : bool
        Whether `fit` shows progress bars.
    random_state : None, int, RandomState or Generator
        Draws landmarks, sketches and rows to leave out.

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        c, in float64.
    intercept_ : float or ndarray of shape (n_targets,)
        b.
    X_fit_ : array of shape (n_samples, n_features)
        The rows of `fit`; None for "precomputed".
    alpha_ : float
        The α taken.
    alphas_ : ndarray
        All of them, in increasing order.
    errors_ : ndarray
        For several: mean squared error on rows left out, summed over targets, for each of `alphas_`.
    solver_ : str
        The solver taken.
    n_iter_ : int
        Iterations of "pcg" or "gradient", for all α together; 1 for the others.
    history_ : list of ndarray of shape (iterations + 1, n_targets)
        Relative residuals, for each of `alphas_`. (Not kept in files.)
    sketch_size_, dimension_ : int, float
        Rows of the sketch, and an estimate of s_λ, for "sketch".
    lengthscale_ : float
        ℓ of "gaussian", "laplace", "matern" and "exponential".
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The preconditioner is Z Zᵀ + E ≈ K + αI with a sparse approximation of E⁻¹ from neighbours; see
    ``docs/design/kernel-ridge.md``. Z costs O(n m²), neighbours O(n²) and O(n k² (k + m)), each iteration O(n²) if the
    matrix is in memory. For several α each starts from the solution before it; the errors of rows left out,
    c_i/(K + αI)⁻¹_ii with b as it is, are exact up to the tolerance of their own right-hand sides. Kernel values and
    solutions are in float64.

    "sketch" promises ‖Kc − y‖² + α cᵀKc within 1 + ε of the optimum for features close to the kernel (Theorem 6.9 of
    [1]_). With landmarks c is 0 elsewhere; with other features K − Z Zᵀ must be small against α.

    References
    ----------
    .. [1] Song, Woodruff, Yu, Zhang, "Fast Sketching of Polynomial Kernels of Polynomial Degree", ICML 2021,
       arXiv:2108.09420, Theorems 6.6 and 6.9, Algorithm 2.
    .. [2] Zhao, Xu, Huang, Chow, Xi, "An Adaptive Factorized Nyström Preconditioner for Regularized Kernel Matrices",
       SIAM J. Sci. Comput. 2024, arXiv:2304.05460.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import KernelRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (1000, 3))
    >>> y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(1000)
    >>> model = KernelRidge("ntk", [1e-2, 1e-1, 1.0], depth=2, solver="pcg", random_state=0).fit(X[:800], y[:800])
    >>> bool(model.score(X[800:], y[800:]) > 0.95)
    True
    >>> model.n_iter_ < 100
    True
    """

    _single: bool

    def _targets(self, y: Any) -> np.ndarray:
        values = check_targets(y, type(self).__name__)
        self._single = values.ndim == 1
        return values[:, None] if self._single else values

    def predict(self, X: Any) -> Array:
        """Predict the targets of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_targets)
            Of the library of X; float32 for float32.
        """
        if _array.is_dask(X):
            check_is_fitted(self)
            return self._map_rows(self.predict, X, None if self._single else int(self._dual.shape[1]))
        scores = self._scores(X)
        return like_rows(scores[:, 0] if self._single else scores, X)

    @property
    def dual_coef_(self) -> np.ndarray:
        """Dual coefficients."""
        return self._dual[:, 0] if self._single else self._dual

    @property
    def intercept_(self) -> Any:
        """Mean of the targets."""
        return float(self._intercept[0]) if self._single else self._intercept


class KernelRidgeClassifier(ClassifierMixin, KernelModel):
    """Classification by kernel ridge regression on the indicators of the classes.

    The class with the largest prediction wins. See :class:`KernelRidge`, which has the same parameters and attributes.

    Parameters
    ----------
    kernel, alpha, solver, kernel_params, lengthscale, depth, fit_intercept, features, n_components, n_neighbors, tol, \
            max_iter, n_selection, sketch_size, epsilon, cache_size, batch_size, progress, random_state
        As in :class:`KernelRidge`; `fit_intercept` subtracts the shares of the classes.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    dual_coef_ : ndarray of shape (n_samples, n_classes)
    intercept_ : ndarray of shape (n_classes,)

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from ntkit import KernelRidgeClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = KernelRidgeClassifier("ntk", 0.1, depth=3).fit(X[:1000] / 16, y[:1000])
    >>> bool(model.score(X[1000:] / 16, y[1000:]) > 0.96)
    True
    """

    def _targets(self, y: Any) -> np.ndarray:
        labels = check_labels(y, type(self).__name__)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs rows of at least two classes. Got one class only: "
                f"{self.classes_.tolist()[0]!r}."
            )
        return np.eye(len(self.classes_))[numbers]

    def decision_function(self, X: Any) -> Array:
        """Predictions for the classes.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes), or (n_samples,) for two classes: the second's minus the first's
        """
        check_is_fitted(self)
        binary = len(self.classes_) == 2
        if _array.is_dask(X):
            return self._map_rows(self.decision_function, X, None if binary else len(self.classes_))
        scores = self._scores(X)
        return like_rows(scores[:, 1] - scores[:, 0] if binary else scores, X)

    def predict(self, X: Any) -> Array:
        """Predict the classes of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples,)
            A torch tensor if X is one and the classes are numbers.
        """
        if _array.is_dask(X):
            check_is_fitted(self)
            return self._map_rows(self.predict, X, None, self.classes_.dtype)
        return winners(self._scores(X), self.classes_, X)

    @property
    def dual_coef_(self) -> np.ndarray:
        """Dual coefficients of the classes."""
        return self._dual

    @property
    def intercept_(self) -> np.ndarray:
        """Shares of the classes."""
        return self._intercept
