"""Base class of estimators with a `kernel` parameter: finds the kernel and validates its rows or matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._images import RowOrImageInput, as_floats
from ntkit._validation import check_int, message
from ntkit.kernels import KernelSpec
from ntkit.kernels.spec import KernelLike, of_estimator


class KernelEstimator(RowOrImageInput):
    """Estimators with the parameters of a kernel, which may be "precomputed"."""

    kernel: KernelLike
    kernel_params: dict[str, Any] | None
    depth: int | None
    lengthscale_: float
    _resolved: KernelSpec | None

    def _check_rows(self, X: Any, *, reset: bool) -> Array:
        """Validate rows, images or a kernel matrix."""
        of_rows = isinstance(self.kernel, str) and self.kernel not in ("cntk", "precomputed")
        if reset and of_rows and getattr(X, "ndim", 2) == 4:
            rule = f"2-D (n_samples, n_features) for kernel={self.kernel!r}"
            raise ValueError(message(type(self).__name__, "X", rule, X, "Reshape it with X.reshape(len(X), -1)."))
        X = super()._check_rows(X, reset=reset)
        if X.ndim == 4:
            return as_floats(X if _array.is_torch(X) else np.asarray(X))
        if self._has_name("precomputed") if reset else self._resolved is None:
            self._check_matrix(X, square=reset)
        return X if not _array.is_torch(X) or X.dtype.is_floating_point else _array.widen(X)

    def _check_matrix(self, K: Any, *, square: bool) -> None:
        name = type(self).__name__
        if _array.is_sparse(K):
            rule = "dense for kernel='precomputed'"
            raise TypeError(message(name, "X", rule, K, "Use X.toarray()."))
        if square and K.shape[0] != K.shape[1]:
            raise ValueError(message(name, "X", "a square kernel matrix for kernel='precomputed'", K))

    def _resolve(self) -> None:
        """Set the kernel that the parameters name, with the length scale of `fit`; None for "precomputed"."""
        self._resolved = self._kernel_of(getattr(self, "lengthscale_", 1.0))

    def _kernel_of(self, lengthscale: float) -> KernelSpec | None:
        """Return the kernel that the parameters name, with the given length scale; None for "precomputed"."""
        if self._has_name("precomputed"):
            return None
        name = type(self).__name__
        images = self._has_name("cntk")
        depth = self.depth
        if depth is None:
            depth = 3 if images else 1
        elif check_int(depth, "depth", name, minimum=1) < 2 and images:
            rule = "an int ≥ 2 for kernel='cntk', whose first and last layers are not trained"
            raise ValueError(message(name, "depth", rule, depth))
        own = {"depth": depth, "lengthscale": lengthscale}
        return of_estimator(self.kernel, own, self.kernel_params, name)

    @property
    def _has_lengthscale(self) -> bool:
        """Whether the kernel has a length-scale parameter."""
        named = isinstance(self.kernel, str) and self.kernel in KernelSpec.names()
        return named and "lengthscale" in KernelSpec.parameters(str(self.kernel))

    def _has_name(self, *names: str) -> bool:
        return isinstance(self.kernel, str) and self.kernel in names

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]  # defined by scikit-learn's base class
        tags.input_tags.pairwise = self._has_name("precomputed")
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags
