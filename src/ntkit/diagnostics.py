"""Error measures for kernel approximations (relative, spectral, projection cost), and suggested sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._random import RandomState, generator, keyed, seed_sequence
from ntkit._validation import check_data, check_int, check_real, check_same_library, message

if TYPE_CHECKING:
    from ntkit.features.base import FeatureMap

__all__ = ["kernel_error", "projection_cost_error", "spectral_error", "statistical_dimension", "suggest_n_components"]

_N_SEEDS = 5  # maps tried for each size
_MAX_STEPS = 100  # of Dinkelbach's iteration, which usually takes a handful
_ROWS_PER_LANDMARK = 8  # rows to choose each landmark from, for maps that choose landmarks
_EIGENVALUE_NOISE = 1e-14  # rounding error of an eigenvalue, relative to n_rows times the largest eigenvalue


def kernel_error(
    feature_map: Any,
    X: Any,
    *,
    kernel: str | Callable[..., Any] | None = None,
    n_samples: int = 1000,
    random_state: RandomState = None,
    **kernel_params: Any,
) -> float:
    """Compute the relative error ‖Z Zᵀ − K‖_F / ‖K‖_F of a fitted feature map on a sample of rows.

    Parameters
    ----------
    feature_map : transformer
        A fitted feature map of ntkit, or any other transformer if `kernel` is given.
    X : array, data frame, sparse matrix or torch tensor of shape (n_rows, n_features), or images of shape \
            (n_images, height, width, channels) for maps that take them
    kernel : str, network or callable, optional
        The exact kernel, as in :func:`ntkit.kernels.gram`; by default the kernel that an ntkit map approximates.
    n_samples : int, default=1000
        Rows drawn from X without replacement; all rows if X has fewer.
    random_state : None, int, RandomState or Generator
        Seed of the sample.
    **kernel_params
        Parameters of `kernel`.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.kernel_approximation import RBFSampler
    >>> from ntkit import NTKFeatures
    >>> from ntkit.diagnostics import kernel_error
    >>> X = np.random.default_rng(0).standard_normal((300, 5))
    >>> bool(kernel_error(NTKFeatures(n_components=512, random_state=0).fit(X), X) < 0.05)
    True
    >>> rbf = RBFSampler(gamma=0.5, n_components=512, random_state=0).fit(X)
    >>> bool(kernel_error(rbf, X, kernel="gaussian", lengthscale=1.0) < 1.0)
    True
    """
    rows = sample_rows(X, n_samples, seed_sequence(random_state, owner="kernel_error"), "kernel_error")
    rows = rows.detach() if _array.is_torch(rows) else rows
    K = exact_kernel_of(feature_map, rows, kernel, kernel_params, "kernel_error")
    return relative_error(K, as_plain_rows(feature_map.transform(rows)))


def projection_cost_error(K: Any, Z: Any, rank: int) -> float:
    """Compute the smallest ε with 1 − ε ≤ tr(Z Zᵀ − P Z Zᵀ P) / tr(K − P K P) ≤ 1 + ε for all projections P of a rank.

    P ranges over the orthogonal projections of rank `rank`. The error bounds how much principal components and k-means
    lose when they use the features instead of the kernel: for ε < 1, the best P for Z Zᵀ costs at most (1 + ε)/(1 − ε)
    times the least cost for K. Theorem 10 of [1]_ bounds the number of random Gegenbauer features for a given ε. The
    measure applies to any features.

    Parameters
    ----------
    K : array of shape (n, n)
        Kernel matrix.
    Z : array of shape (n, m)
        Features.
    rank : int
        Rank r of P, from 1 to n − 1 and less than the rank of K; otherwise some P makes tr(K − P K P) zero. For
        k-means, it is the number of clusters.

    Returns
    -------
    float

    Notes
    -----
    The result is exact over all P. The ratio is tr(QA)/tr(QK) with A = Z Zᵀ and Q = I − P. For any θ, the largest
    tr(Q(A − θK)) is the sum of the n − r largest eigenvalues of A − θK. Dinkelbach's iteration [2]_, θ ← tr(QA)/tr(QK)
    with the maximizing Q, converges quadratically to the largest ratio; with the smallest eigenvalues, it converges to
    the smallest ratio. Each step is an eigendecomposition, O(n³).

    References
    ----------
    .. [1] Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022, Theorem 10.
    .. [2] Dinkelbach, "On Nonlinear Fractional Programming", Management Science 13, 1967.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.diagnostics import projection_cost_error
    >>> Z = np.diag([1.0, 1.0, 1.5])
    >>> round(projection_cost_error(np.eye(3), Z, 2), 6)
    1.25
    """
    name = "projection_cost_error"
    K, Z = checked_matrix_and_features(K, Z, name)
    if K.shape[0] == 1:
        raise ValueError(message(name, "K", "a matrix with at least two rows, for ranks from 1 to n − 1", K))
    rank = check_int(rank, "rank", name, minimum=1, maximum=K.shape[0] - 1)
    xp: Any = _array.namespace(K, Z)
    eigenvalues = _spectrum(K, name)
    least_cost = float(xp.sum(eigenvalues[: K.shape[0] - rank]))  # the smallest tr(K − P K P)
    noise = _EIGENVALUE_NOISE * K.shape[0] * float(eigenvalues[-1])
    if least_cost <= noise:
        rule = f"less than the rank of K, {int(xp.sum(eigenvalues > noise))}"
        raise ValueError(message(name, "rank", rule, rank, "Otherwise some P makes tr(K − P K P) zero."))
    A = xp.matmul(Z, xp.matrix_transpose(Z))
    kept = (slice(rank, None), slice(None, K.shape[0] - rank))  # eigenvectors for the largest and smallest ratio
    return max(abs(_extreme_ratio(A, K, columns) - 1) for columns in kept)


def spectral_error(K: Any, Z: Any, lam: float) -> float:
    """Compute the smallest ε with (1 − ε)(K + λI) ⪯ Z Zᵀ + λI ⪯ (1 + ε)(K + λI).

    It bounds how much ridge regression with penalty λ loses when Z Zᵀ replaces K: for ε < 1, predictions and risk
    change by a factor of at most about (1 + ε)/(1 − ε).

    Parameters
    ----------
    K : array of shape (n, n)
        Kernel matrix.
    Z : array of shape (n, m)
        Features.
    lam : float > 0
        λ.

    Returns
    -------
    float
        Largest absolute eigenvalue of (K + λI)^{-1/2} (Z Zᵀ − K) (K + λI)^{-1/2}.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.diagnostics import spectral_error
    >>> round(spectral_error(np.eye(3), np.sqrt(1.5) * np.eye(3), 1.0), 6)
    0.25
    """
    lam = check_real(lam, "lam", "spectral_error", minimum=0, strict=True)
    K, Z = checked_matrix_and_features(K, Z, "spectral_error")
    xp: Any = _array.namespace(K, Z)
    eye = xp.eye(K.shape[0], dtype=K.dtype, device=_array.device(K))
    try:
        root = xp.linalg.cholesky(K + lam * eye)
    except Exception as error:
        raise ValueError(
            f"K + λI must be positive definite. With lam={lam} it is not. Either K is not a kernel matrix, or lam is "
            "below the rounding errors of K and must be larger."
        ) from error
    half = xp.linalg.solve(root, xp.matmul(Z, xp.matrix_transpose(Z)) - K)
    whole = xp.linalg.solve(root, xp.matrix_transpose(half))
    eigenvalues = xp.linalg.eigvalsh(0.5 * (whole + xp.matrix_transpose(whole)))
    return float(xp.max(xp.abs(eigenvalues)))


def statistical_dimension(K: Any, lam: float) -> float:
    """Compute the statistical dimension s_λ = tr K (K + λI)⁻¹ = Σ μ_i / (μ_i + λ), with μ_i the eigenvalues of K.

    Parameters
    ----------
    K : array of shape (n, n)
        Kernel matrix.
    lam : float > 0
        λ.

    Returns
    -------
    float
        Between 0 and the rank of K.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.diagnostics import statistical_dimension
    >>> statistical_dimension(np.diag([3.0, 1.0, 0.0]), 1.0)
    1.25
    """
    K = _kernel_matrix(K, "statistical_dimension")
    lam = check_real(lam, "lam", "statistical_dimension", minimum=0, strict=True)
    xp: Any = _array.namespace(K)
    eigenvalues = _spectrum(K, "statistical_dimension")
    return float(xp.sum(eigenvalues / (eigenvalues + lam)))


def suggest_n_components(
    feature_map: FeatureMap,
    X: Any,
    target_error: float,
    *,
    n_samples: int = 500,
    maximum: int = 65536,
    random_state: RandomState = 0,
) -> int:
    """Find the number of components that a feature map needs to reach a relative error on your rows.

    Every map has this function as a method; :meth:`ntkit.NTKFeatures.suggest_n_components` documents the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import NTKFeatures
    >>> from ntkit.diagnostics import suggest_n_components
    >>> X = np.random.default_rng(0).standard_normal((200, 10))
    >>> m = suggest_n_components(NTKFeatures(), X, 0.05)
    >>> bool(NTKFeatures(n_components=m, random_state=1).fit(X).estimate_error(X) < 0.06)
    True
    """
    name = type(feature_map).__name__
    owner = f"{name}.suggest_n_components"
    target = check_real(target_error, "target_error", owner, minimum=0, strict=True)
    maximum = check_int(maximum, "maximum", owner, minimum=1)
    seed = seed_sequence(random_state, owner=owner)
    rows, others = sample_rows(X, n_samples, seed, owner), None
    if feature_map.learns_from_rows:
        rows, others = _split(X, n_samples, seed, owner)
    K = None
    previous = (0, np.inf)  # number of components and error
    m = min(32, maximum)
    while True:
        errors = []
        for i in range(_N_SEEDS):
            trial = feature_map.resized(m, random_state=int_seed(keyed(seed, "map", i)))
            training = rows
            if others is not None:
                training = sample_rows(others, max(_ROWS_PER_LANDMARK * m, n_samples), keyed(seed, i), owner)
            Z = trial.fit(training).transform(rows)
            if K is None or others is not None:  # the length scale may depend on the training rows
                K = trial.exact_kernel(rows)
            errors.append(relative_error(K, as_plain_rows(Z)))
        error = float(np.sqrt(np.mean(np.square(errors))))
        if error <= target:
            break
        if m == maximum or (others is not None and m >= others.shape[0]):
            remedy = "Raise `maximum`" if m == maximum else "Give more rows"
            raise ValueError(
                f"{name} reaches a relative error of {error:.3g} on these rows with {m} components; "
                f"target_error={target:g} needs more. {remedy}, or accept a larger error."
            )
        previous = (m, error)
        m = min(2 * m, maximum)
    last_m, last_error = previous
    if not last_m or error == 0:
        return m
    rate = np.log(last_error / error) / np.log(m / last_m)
    return min(max(int(np.ceil(last_m * (last_error / target) ** (1 / rate))), last_m + 1), m)


def int_seed(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1)[0])


def relative_error(K: Array, Z: Array) -> float:
    xp: Any = _array.namespace(K, Z)
    K, Z = _array.widen(K), _array.widen(Z)
    error = xp.linalg.matrix_norm(xp.matmul(Z, xp.matrix_transpose(Z)) - K)
    size = xp.linalg.matrix_norm(K)
    return float(error / size) if size > 0 else float(error)


def exact_kernel_of(feature_map: Any, rows: Any, kernel: Any, kernel_params: dict[str, Any], owner: str) -> Array:
    """Compute the kernel matrix of `rows` for `kernel`, or for the kernel that an ntkit map approximates."""
    if kernel is not None:
        from ntkit.kernels import gram

        return gram(kernel, as_plain_rows(rows), **kernel_params)
    if not hasattr(feature_map, "exact_kernel"):
        name = type(feature_map).__name__
        rule = f"given (a name such as 'ntk', a network or a function) for {name}, which is not a map of ntkit"
        raise TypeError(message(owner, "kernel", rule, kernel))
    if kernel_params:
        raise TypeError(f"{owner} got kernel parameters {sorted(kernel_params)}, but no kernel. Pass kernel=…, too.")
    return feature_map.exact_kernel(rows)


def as_plain_rows(rows: Any) -> Any:
    """Return the values of a data frame; return other rows unchanged."""
    return rows.to_numpy() if hasattr(rows, "to_numpy") else rows


def sample_rows(X: Any, n_samples: int, seed: np.random.SeedSequence, owner: str) -> Any:
    """Sample rows of X. They keep their order and the type of X."""
    n_samples = check_int(n_samples, "n_samples", owner, minimum=1)
    if not hasattr(X, "shape"):
        X = np.asarray(X)
    if X.shape[0] <= n_samples:
        return X
    return _take(X, np.sort(generator(seed, "sample").choice(X.shape[0], n_samples, replace=False)))


def _split(X: Any, n_samples: int, seed: np.random.SeedSequence, owner: str) -> tuple[Any, Any]:
    """Split X at random into a sample, at most half of the rows, and the other rows."""
    n_samples = check_int(n_samples, "n_samples", owner, minimum=1)
    X = X if hasattr(X, "shape") else np.asarray(X)
    if X.shape[0] < 2:
        raise ValueError(message(owner, "X", "at least two rows: some to fit the map, some to measure its error", X))
    order = generator(seed, "split").permutation(X.shape[0])
    n_samples = min(n_samples, X.shape[0] // 2)
    return _take(X, np.sort(order[:n_samples])), _take(X, np.sort(order[n_samples:]))


def _take(X: Any, chosen: np.ndarray) -> Any:
    """Return rows of X with the same type as X."""
    if hasattr(X, "iloc"):
        return X.iloc[chosen]
    if _array.is_torch(X):
        import torch

        return X[torch.from_numpy(chosen).to(X.device)]
    if _array.is_sparse(X):
        return X.tocsr()[chosen]
    return np.asarray(X)[chosen]


def _kernel_matrix(K: Any, owner: str) -> Array:
    K = check_data(K, "K", owner)
    if _array.is_sparse(K) or K.shape[0] != K.shape[1]:
        raise ValueError(message(owner, "K", "a square matrix", K))
    K = _array.widen(K)
    xp: Any = _array.namespace(K)
    transposed = xp.matrix_transpose(K)
    top = float(xp.max(xp.abs(K)))
    if float(xp.max(xp.abs(K - transposed))) > 1e-6 * top:
        raise ValueError(
            f"The 'K' parameter of {owner} must be symmetric, as kernel matrices are. Got an asymmetric one instead."
        )
    return 0.5 * (K + transposed)


def checked_matrix_and_features(K: Any, Z: Any, owner: str) -> tuple[Array, Array]:
    K = _kernel_matrix(K, owner)
    Z = check_data(Z, "Z", owner)
    if Z.shape[0] != K.shape[0]:
        raise ValueError(message(owner, "Z", f"an array of {K.shape[0]} rows, like K", Z))
    check_same_library(K, Z, owner, "K and Z")
    return K, _array.widen(Z)


def _spectrum(K: Array, owner: str) -> Array:
    """Return the eigenvalues in increasing order. Eigenvalues that rounding made negative become zero."""
    xp: Any = _array.namespace(K)
    eigenvalues = xp.linalg.eigvalsh(K)
    smallest = float(xp.min(eigenvalues))
    if smallest < -1e-6 * float(xp.max(xp.abs(eigenvalues))):
        raise ValueError(
            f"The 'K' parameter of {owner} must be positive semidefinite, as kernel matrices are. Got one with the "
            f"eigenvalue {smallest:.3g} instead."
        )
    return xp.where(eigenvalues > 0, eigenvalues, xp.zeros_like(eigenvalues))


def _extreme_ratio(A: Array, K: Array, columns: slice) -> float:
    """Maximize or minimize tr(QA)/tr(QK) by Dinkelbach's iteration.

    Q projects on the eigenvectors `columns` of A − θK, in order of increasing eigenvalues.
    """
    xp: Any = _array.namespace(A, K)
    ratio = 1.0
    for _ in range(_MAX_STEPS):
        vectors = xp.linalg.eigh(A - ratio * K)[1][:, columns]
        old, ratio = ratio, float(xp.sum(vectors * xp.matmul(A, vectors)) / xp.sum(vectors * xp.matmul(K, vectors)))
        if abs(ratio - old) <= 1e-12 * ratio:
            break
    return ratio
