"""Gaussian, Laplace and Matérn kernels against scikit-learn and against inner products alone: time and error.

Kernel matrices are n × n, of float64 rows with d columns. Rows are "normal" (independent entries) or in eight
"clusters" with centres about 1e6 apart. Times are medians of rounds in which the methods take turns. Errors are the
largest relative errors of 200 × 200 entries above 1e-300, compared with NumPy's long double. "products" is the Gaussian
kernel computed in NumPy from ‖x‖² + ‖y‖² − 2⟨x, y⟩ relative to the first row of a tile, the former method of ntkit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiment import grid, main, medians, table

TITLE = "Gaussian, Laplace and Matérn kernels: time and error"
KERNELS = ("gaussian", "laplace", "laplace l1", "matern 1.5", "matern 2.5")
FEW = 200  # rows on which errors are measured


def random_rows(kind, n, d, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    if kind == "clusters":
        centres = np.random.default_rng(0).standard_normal((8, d))
        X += 1e6 * centres[rng.integers(8, size=n)]
    return X


def methods(lengthscale):
    """Return {kernel name: {method: function of X and Y}}."""
    from sklearn.gaussian_process.kernels import Matern
    from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

    from ntkit.kernels import gaussian, laplace, matern

    size = {"lengthscale": lengthscale}
    found = {
        "gaussian": {
            "scikit-learn": lambda X, Y: rbf_kernel(X, Y, gamma=0.5 / lengthscale**2),
            "products": lambda X, Y: products(lengthscale).matrix(X, Y),
            "ntkit": lambda X, Y: gaussian(X, Y, **size),
        },
        "laplace": {
            "scikit-learn": lambda X, Y: Matern(lengthscale, nu=0.5)(X, Y),
            "ntkit": lambda X, Y: laplace(X, Y, **size),
        },
        "laplace l1": {
            "scikit-learn": lambda X, Y: laplacian_kernel(X, Y, gamma=1 / lengthscale),
            "ntkit": lambda X, Y: laplace(X, Y, norm="l1", **size),
        },
    }
    for nu in (1.5, 2.5):
        found[f"matern {nu}"] = {
            "scikit-learn": lambda X, Y, nu=nu: Matern(lengthscale, nu=nu)(X, Y),
            "ntkit": lambda X, Y, nu=nu: matern(X, Y, nu=nu, **size),
        }
    return found


def products(lengthscale):
    """Return the Gaussian kernel by the former method of ntkit."""
    from ntkit.kernels import KernelSpec
    from ntkit.kernels.tiles import assign, inner_products, row_norms

    @dataclass(frozen=True)
    class Products(KernelSpec):
        owner = "products"

        def fill(self, a, b, outs):
            x, y = ((Z.data - b.data[:1]) / lengthscale for Z in (a, b))
            squares = (row_norms(x) ** 2)[:, None] + (row_norms(y) ** 2)[None, :] - 2 * inner_products(x, y)
            assign(outs[0], np.exp(np.clip(squares, 0, None) * -0.5))

        def own_values(self, a):
            return (np.ones(len(a)),)

    return Products()


def exact(name, X, Y, lengthscale):
    """Compute the kernel in long double from differences."""
    X, Y, lengthscale = X.astype(np.longdouble), Y.astype(np.longdouble), np.longdouble(lengthscale)
    difference = X[:, None] - Y[None]
    if name == "laplace l1":
        return np.exp(-np.abs(difference).sum(axis=2) / lengthscale)
    a = np.sqrt((difference**2).sum(axis=2)) / lengthscale
    if name == "gaussian":
        return np.exp(-a * a / 2)
    nu = np.longdouble(name.split()[1] if " " in name else 0.5)
    a *= np.sqrt(2 * nu)
    return np.exp(-a) * {0.5: 1, 1.5: 1 + a, 2.5: 1 + a + a * a / 3}[float(nu)]


def cases(args):
    n, rounds, columns = (500, 1, 20) if args.quick else (4000, 5, (4, 20, 200))
    return grid(rows=("normal", "clusters"), d=columns, kernel=KERNELS, n=n, rounds=rounds)


def measure(rows, d, kernel, n, rounds):
    X, Y = random_rows(rows, n, d, 1), random_rows(rows, n, d, 2)
    lengthscale = (d / 2) ** 0.5 if rows == "normal" else d**0.5
    functions = methods(lengthscale)[kernel]
    seconds = medians({name: lambda f=f: f(X, Y) for name, f in functions.items()}, rounds)
    reference = exact(kernel, X[:FEW], Y[:FEW], lengthscale)
    present = reference > 1e-300
    found = {}
    for name, function in functions.items():
        K = function(X, Y)[:FEW, :FEW]
        error = float((np.abs(K - reference)[present] / reference[present]).max())
        found[name] = {"seconds": seconds[name], "error": error}
    return {"methods": found}


def report(runs):
    return table(runs, "rows d kernel method seconds:.4f seconds/:.2f error:.1e")


if __name__ == "__main__":
    main(__name__)
