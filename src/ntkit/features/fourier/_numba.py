"""Compute cosines and sines of phases together and in place. NumPy calls the C library for each float64 number instead.

x = kπ/2 + r with |r| ≤ π/4. One polynomial approximates sin r and another cos r; k tells how these give cos x and
sin x. π/2 is split into three numbers whose products with k have no rounding error (for float64, the numbers of
fdlibm). In float32 and float64 the absolute error is about the rounding unit of 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ntkit._compiled import compiled

_SINE = (
    -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
    2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
_COSINE = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
    -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip
# Largest phase; 1.5 · 2^(digits − 1), which rounds numbers to integers when added and subtracted; π/2 in three parts.
_REDUCTION = {
    "float64": (2.0**20, 1.5 * 2.0**52, 1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624871116645580e-21),
    "float32": (2.0**13, 1.5 * 2.0**23, 1.5703125, 4.837512969970703125e-4, 7.54978995489188216e-8),
}


def waves(Z: np.ndarray, half: int, phase: float | None) -> None:
    """Replace the first `half` = h columns x of C-contiguous rows by h^{-1/2} cos x, followed by h^{-1/2} sin x.

    With a `phase` b, the last column has no sine and its cosine is (2/h)^{1/2} cos(x + b).
    """
    constants = (2 / math.pi, 1.0, -0.5, half**-0.5, *_REDUCTION[Z.dtype.name], *_SINE, *_COSINE)
    _waves(Z, half, phase or 0.0, phase is not None, tuple(Z.dtype.type(number) for number in constants))


@compiled
def _waves(Z: np.ndarray, half: int, phase: float, alone: bool, constants: Any) -> None:
    pairs = half - alone
    per_turn, one, minus_half, scale, limit, rounder, p1, p2, p3 = constants[:9]
    s1, s2, s3, s4, s5, s6, c1, c2, c3, c4, c5, c6 = constants[9:]
    for i in range(len(Z)):
        cosines, sines = Z[i, :half], Z[i, half:]
        if alone:
            cosines[pairs] = math.sqrt(2.0 / half) * math.cos(float(cosines[pairs]) + phase)
        far = False
        for j in range(pairs):
            far |= abs(cosines[j]) > limit
        if far:  # k has too many digits for this method: call the C library
            for j in range(pairs):
                x = float(cosines[j])
                cosines[j], sines[j] = scale * math.cos(x), scale * math.sin(x)
            continue
        for j in range(pairs):
            x = cosines[j]
            k = (x * per_turn + rounder) - rounder
            r = ((x - k * p1) - k * p2) - k * p3
            z = r * r
            sine = r + r * z * (s1 + z * (s2 + z * (s3 + z * (s4 + z * (s5 + z * s6)))))
            cosine = one + z * (minus_half + z * (c1 + z * (c2 + z * (c3 + z * (c4 + z * (c5 + z * c6))))))
            quarter = np.int32(k)
            swap = quarter & 1
            a = scale * (sine if swap else cosine)
            b = scale * (cosine if swap else sine)
            cosines[j] = -a if (quarter + 1) & 2 else a
            sines[j] = -b if quarter & 2 else b
