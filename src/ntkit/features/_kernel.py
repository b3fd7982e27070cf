"""Estimators of any kernel: the kernel that their parameters name, and the rows or matrices it takes."""

from __future__ import annotations

from typing import Any

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import OfRows
from ntkit._validation import message
from ntkit.features._images import as_floats, check_images
from ntkit.kernels._base import Kernel
from ntkit.kernels._named import KernelLike, resolve

SCALED = ("gaussian", "exponential")
_DEEP = ("ntk", "nngp", "cntk")


class OfKernel(OfRows):
    """Estimators with the parameters of a kernel, "precomputed" among them."""

    kernel: KernelLike
    kernel_params: dict[str, Any] | None
    depth: int
    lengthscale_: float
    _resolved: Kernel | None

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
        name, given = type(self).__name__, dict(self.kernel_params or {})
        own: dict[str, Any] = {}
        if self._has_name(*SCALED):
            own = {"lengthscale": self.lengthscale_}
        elif self._has_name(*_DEEP):
            own = {"depth": self.depth}
            if self._has_name("cntk") and self.depth < 2:
                rule = "an int ≥ 2 for kernel='cntk', of which neither the first nor the last layer is trained"
                raise ValueError(message(name, "depth", rule, self.depth))
        twice = sorted(own.keys() & given.keys())
        if twice:
            rule = f"without {twice[0]!r}, which is a parameter of its own"
            raise ValueError(message(name, "kernel_params", rule, given))
        self._resolved = resolve(self.kernel, own | given, name)

    def _has_name(self, *names: str) -> bool:
        return isinstance(self.kernel, str) and self.kernel in names

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]  # of scikit-learn's base class
        tags.input_tags.pairwise = self._has_name("precomputed")
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags
