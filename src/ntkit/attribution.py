"""Training data attribution: influence scores from gradient features.

The features come from :class:`ntkit.EmpiricalNTKFeatures` or any other map. A score says how much a training row
changes the output of a test row, in the model that is linear in the features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import AllOrNothing
from ntkit._lapack import triangular_root
from ntkit._validation import check_bool, check_data, check_int, check_real, message

__all__ = ["TrainingInfluence", "residuals"]


def residuals(module: Any, X: Any, y: Any = None, *, batch_size: int = 256) -> np.ndarray:
    """Compute 1 − p for each row, where p is the probability that a classifier assigns to the row's class.

    Parameters
    ----------
    module : torch.nn.Module
        A classifier in evaluation mode, as for :class:`ntkit.EmpiricalNTKFeatures`.
    X : torch tensor, array, dict or tuple of these, or loader
    y : tensor or array of shape (n_rows,), optional
        Classes. By default they come from the loader, or from the entry "labels" of a dict.
    batch_size : int, default=256

    Returns
    -------
    ndarray of shape (n_rows,)

    Examples
    --------
    >>> import torch
    >>> from ntkit.attribution import residuals
    >>> residuals(torch.nn.Identity(), torch.tensor([[0.0, 0.0], [0.0, 50.0]]), torch.tensor([0, 1]))
    array([0.5, 0. ])
    """
    import torch

    from ntkit.features.empirical import outputs, rows

    parameter = next(iter(module.parameters()), torch.empty(0))
    source = rows.as_rows(X, y, "residuals", device=parameter.device, dtype=parameter.dtype)
    size = check_int(batch_size, "batch_size", "residuals", minimum=1)
    parts = []
    with torch.no_grad():
        for batch in source.batches(size):
            if batch.targets is None or batch.targets.ndim != 1:
                remedy = "Pass y. For sequences, use features with output='loss', which need no residuals."
                raise ValueError(message("residuals", "y", "one class for each row", batch.targets, remedy))
            values = outputs.evaluate("margin", module, batch.inputs, batch.targets, batch.n_rows, "residuals")
            parts.append(torch.sigmoid(-values.double()).cpu().numpy())  # the margin is the log-odds of the class
    return np.concatenate(parts).round(15)


class TrainingInfluence(AllOrNothing, BaseEstimator):
    """Influence of training rows on test rows, from gradient features.

        s(x, xᵢ) = z(x)ᵀ (ZᵀZ + αI)⁻¹ z(xᵢ) · rᵢ,

    is the first-order change of the output of x when the training row i is added. This is TRAK [1]_ if z is the
    projected gradient of the margin, rᵢ = 1 − pᵢ comes from :func:`residuals`, and α → 0. With features of several
    checkpoints of a model, the factor without rᵢ and the residuals are averaged over the checkpoints separately. With
    features of the loss and no residuals, the score is the influence function [2]_ with the Gauss–Newton matrix in
    place of the Hessian. A positive score means that the training row helps.

    Parameters
    ----------
    shrinkage : float
        Penalty α ≥ 0, relative to the mean of the nonzero eigenvalues of ZᵀZ, tr(ZᵀZ)/min(n, m). Values near 1 best
        predict how outputs change when rows are removed. Values of 10 and more give scores that resemble row
        similarities.
    batch_size : int
        Rows scored at a time, so that no matrix of all training and all test rows is held.

    Attributes
    ----------
    n_samples_ : int
        Number of training rows.
    alphas_ : list of float
        Penalty α of each checkpoint.

    Notes
    -----
    With n rows and m features, `fit` takes O(n m² + m³) time and 8 m² bytes, and scores take O(n n_test m) time. `fit`
    keeps a reference to the training features. They may be memory maps or folders (``FeatureShards``), which every call
    reads block by block.

    References
    ----------
    .. [1] Park et al., "TRAK: Attributing model behavior at scale", ICML 2023, Section 3.
    .. [2] Koh, Liang, "Understanding black-box predictions via influence functions", ICML 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.attribution import TrainingInfluence
    >>> Z = np.random.default_rng(0).standard_normal((100, 20))
    >>> influence = TrainingInfluence().fit(Z)
    >>> indices, scores = influence.top_k(Z[:3], k=5)
    >>> indices[:, 0]
    array([0, 1, 2])
    """

    def __init__(self, *, shrinkage: float = 1.0, batch_size: int = 4096):
        self.shrinkage = shrinkage
        self.batch_size = batch_size

    def fit(self, Z: Any, residuals: Any = None) -> Self:
        """Compute and factorize ZᵀZ + αI of the training features.

        Parameters
        ----------
        Z : array, torch tensor, memory map or FeatureShards of shape (n_rows, n_components), or a list of these
            Features of the training rows; a list holds one array per checkpoint.
        residuals : array of shape (n_rows,), or a list of these, optional
            Weights rᵢ; by default 1.

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            owner = type(self).__name__
            check_int(self.batch_size, "batch_size", owner, minimum=1)
            check_real(self.shrinkage, "shrinkage", owner, minimum=0.0)
            self._features = [_check_features(each, "Z", owner) for each in _several(Z)]
            self.n_samples_ = len(self._features[0])
            for each in self._features:
                if len(each) != self.n_samples_:
                    sizes = [len(each) for each in self._features]
                    raise ValueError(
                        f"All arrays in Z of {owner} must have the same number of rows. Got {sizes} instead."
                    )
            self._residuals = self._check_residuals(residuals)
            self._roots, self.alphas_ = [], []
            for each in self._features:
                root, alpha = self._factorize(each)
                self._roots.append(root)
                self.alphas_.append(alpha)
        return self

    def scores(self, Z: Any) -> Array:
        """Compute the scores of all training rows for the given test rows.

        Parameters
        ----------
        Z : array or torch tensor of shape (n_test, n_components), or a list of these
            Features of the test rows: one array per checkpoint, as in `fit`.

        Returns
        -------
        array of shape (n_test, n_rows)
        """
        tests = self._check_tests(Z, "scores")
        return np.concatenate([block for _, block in self._score_blocks(tests)], axis=1)

    def top_k(self, Z: Any, k: int = 10, *, harmful: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Find the training rows with the largest scores for each test row.

        Parameters
        ----------
        Z : array or torch tensor of shape (n_test, n_components), or a list of these
        k : int, default=10
        harmful : bool, default=False
            Find the most negative scores instead.

        Returns
        -------
        indices, scores : ndarrays of shape (n_test, k)
            Strongest first.
        """
        owner = f"{type(self).__name__}.top_k"
        check_bool(harmful, "harmful", owner)
        check_is_fitted(self, "_roots")
        k = check_int(k, "k", owner, minimum=1, maximum=self.n_samples_)
        sign = -1.0 if harmful else 1.0
        tests = self._check_tests(Z, "top_k")
        n_tests = len(tests[0])
        parts = []
        for start in range(0, n_tests, self.batch_size):
            some = [each[start : start + self.batch_size] for each in tests]
            size = len(some[0])
            best: Any = np.empty((size, 0))
            index: Any = np.empty((size, 0), dtype=np.int64)
            for first, block in self._score_blocks(some):
                here = np.broadcast_to(np.arange(first, first + block.shape[1]), block.shape)
                best, index = np.hstack([best, sign * block]), np.hstack([index, here])
                if best.shape[1] > k:
                    kept = np.argpartition(-best, k - 1, axis=1)[:, :k]
                    best, index = (np.take_along_axis(values, kept, axis=1) for values in (best, index))
            order = np.lexsort((index, -best), axis=1)
            parts.append([np.take_along_axis(values, order, axis=1) for values in (index, sign * best)])
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def self_influence(self) -> np.ndarray:
        """Compute the influence zᵢᵀ(ZᵀZ + αI)⁻¹zᵢ rᵢ² of every training row on its own loss.

        Rows that contradict the others, such as mislabelled ones, have large values.

        Returns
        -------
        ndarray of shape (n_rows,)
        """
        check_is_fitted(self, "_roots")
        total = np.zeros(self.n_samples_)
        for features, root in zip(self._features, self._roots, strict=True):
            for start, block in _blocks(features, self.batch_size):
                whitened = _array.to_numpy(block).astype(np.float64) @ root
                total[start : start + len(block)] += (whitened**2).sum(axis=1)
        return total / len(self._roots) * self._residuals**2

    def _factorize(self, features: Any) -> tuple[np.ndarray, float]:
        """Return R with R Rᵀ = (ZᵀZ + αI)⁻¹, and α."""
        m = features.shape[1]
        gram = np.zeros((m, m))
        for _, block in _blocks(features, self.batch_size):
            block = _array.to_numpy(block).astype(np.float64)
            if not np.isfinite(block).all():
                raise ValueError(message(type(self).__name__, "Z", "free of NaN and infinity", block))
            gram += block.T @ block
        mean = float(np.trace(gram)) / min(m, len(features))
        alpha = float(self.shrinkage) * mean
        gram[np.diag_indices(m)] += alpha
        root = triangular_root(gram)
        # L_ii²/C_ii is the share of column i that earlier columns do not explain. Rounding may leave a little of it.
        if root is None or (np.diagonal(root) ** 2 * np.diagonal(gram)).max() * m * np.finfo(float).eps > 1:
            remedy = "ZᵀZ is singular. Raise shrinkage, for example to 1e-6."
            raise ValueError(message(type(self).__name__, "shrinkage", "large enough", self.shrinkage, remedy))
        return root, alpha

    def _score_blocks(self, tests: list[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield blocks of training rows: the index of the first row, and the scores for all test rows."""
        directions = [(each @ root) @ root.T for each, root in zip(tests, self._roots, strict=True)]
        readers = [_blocks(each, self.batch_size) for each in self._features]
        for parts in zip(*readers, strict=True):
            start, first = parts[0]
            total: Any = 0.0
            for (_, block), direction in zip(parts, directions, strict=True):
                values = _array.to_numpy(block)
                total = total + direction.astype(values.dtype) @ values.T
            weight = self._residuals[start : start + len(first)]
            yield start, total.astype(np.float64) / len(directions) * weight

    def _check_residuals(self, residuals: Any) -> np.ndarray:
        owner = type(self).__name__
        if residuals is None:
            return np.ones(self.n_samples_)
        found = [
            np.asarray(_array.to_numpy(check_data(each, "residuals", owner, ndims=(1,))), dtype=np.float64)
            for each in _several(residuals)
        ]
        for each in found:
            if each.shape != (self.n_samples_,):
                raise ValueError(message(owner, "residuals", f"an array of shape ({self.n_samples_},)", each))
        return np.mean(found, axis=0)

    def _check_tests(self, Z: Any, method: str) -> list[np.ndarray]:
        check_is_fitted(self, "_roots")
        owner = f"{type(self).__name__}.{method}"
        tests = [_check_features(each, "Z", owner) for each in _several(Z)]
        tests = [np.asarray(_array.to_numpy(each), dtype=np.float64) for each in tests]
        expected = [each.shape[1] for each in self._features]
        if [each.shape[1] for each in tests] != expected or len({len(each) for each in tests}) > 1:
            shapes = [each.shape for each in tests]
            rule = f"features of the test rows, with {expected} components for the checkpoints passed to fit"
            raise ValueError(message(owner, "Z", rule, shapes))
        return tests


def _several(values: Any) -> Sequence[Any]:
    """Return a list with the arrays of all checkpoints."""
    listed = isinstance(values, list | tuple) and len(values) > 0 and hasattr(values[0], "shape")
    return values if listed else [values]


def _check_features(Z: Any, name: str, owner: str) -> Any:
    """Validate features. Features on disk are not read."""
    if not hasattr(Z, "shape") or (isinstance(Z, np.ndarray | np.generic) and not isinstance(Z, np.memmap)):
        return check_data(Z, name, owner)
    if len(Z.shape) != 2 or 0 in Z.shape:
        raise ValueError(message(owner, name, "features of shape (n_rows, n_components)", Z))
    if not getattr(Z, "complete", True):
        remedy = "Call transform with the same rows and folder again: it resumes where it stopped."
        raise ValueError(message(owner, name, "complete features", Z, remedy))
    return Z


def _blocks(features: Any, size: int) -> Iterator[tuple[int, Any]]:
    """Yield blocks of rows, each with the index of its first row."""
    whole = hasattr(features, "__getitem__")
    parts: Any = [features] if whole else features
    start = 0
    for part in parts:
        for first in range(0, len(part), size):
            block = part[first : first + size]
            yield start, block
            start += len(block)
