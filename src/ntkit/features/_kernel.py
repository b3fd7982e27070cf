"""Estimators of any kernel: the kernel that their parameters name, and the rows or matrices it takes."""

from __future__ import annotations

from typing import Any

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import OfRows
from ntkit._validation import message
from ntkit.features._images import as_floats, check_images
from ntkit.kernels import KernelSpec
from ntkit.kernels.spec import KernelLike, of_estimator


class OfKernel(OfRows):
    """Estimators with the parameters of a kernel, "precomputed" among them."""

    kernel: KernelLike
    kernel_params: dict[str, Any] | None
    depth: int
    lengthscale_: float
    _resolved: KernelSpec | None

    def _check_rows(self, X: Any, *, reset: bool) -> Array:
        """Validate rows, or images if X has these in `fit`."""
        if reset and _array.is_dask(X):
            from ntkit.distributed import first_rows

            X = first_rows(X)
        images = getattr(X, "ndim", 2) == 4 if reset else hasattr(self, "image_shape_")
        if images:
            if isinstance(self.kernel, str) and self.kernel not in ("cntk", "precomputed"):
                rule = f"2-D (n_samples, n_features) for kernel={self.kernel!r}"
                raise ValueError(message(type(self).__name__, "X", rule, X, "Reshape it with X.reshape(len(X), -1)."))
            return as_floats(check_images(self, X, None, reset=reset))
        if reset:
            self.__dict__.pop("image_shape_", None)
        X = super()._check_rows(X, reset=reset)
        if self._has_name("precomputed") if reset else self._resolved is None:
            self._check_matrix(X, square=reset)
        return X if not _array.is_torch(X) or X.dtype.is_floating_point else _array.widen(X)

    def _check_matrix(self, K: Any, *, square: bool) -> None:
        name = type(self).__name__
        if _array.is_sparse(K):
            rule = "dense for kernel='precomputed', which takes no sparse kernel values"
            raise TypeError(message(name, "X", rule, K, "Call .toarray() on it."))
        if square and K.shape[0] != K.shape[1]:
            raise ValueError(message(name, "X", "a square kernel matrix for kernel='precomputed'", K))

    def _resolve(self) -> None:
        """Find the kernel that the parameters name, with the length scale of `fit`; None for "precomputed"."""
        if self._has_name("precomputed"):
            self._resolved = None
            return
        name = type(self).__name__
        if self._has_name("cntk") and self.depth < 2:
            rule = "an int ≥ 2 for kernel='cntk', of which neither the first nor the last layer is trained"
            raise ValueError(message(name, "depth", rule, self.depth))
        own = {"depth": self.depth, "lengthscale": getattr(self, "lengthscale_", 1.0)}
        self._resolved = of_estimator(self.kernel, own, self.kernel_params, name)

    @property
    def _has_lengthscale(self) -> bool:
        """Whether the kernel has a length scale."""
        named = isinstance(self.kernel, str) and self.kernel in KernelSpec.names()
        return named and "lengthscale" in KernelSpec.parameters(str(self.kernel))

    def _has_name(self, *names: str) -> bool:
        return isinstance(self.kernel, str) and self.kernel in names

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]  # of scikit-learn's base class
        tags.input_tags.pairwise = self._has_name("precomputed")
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags
