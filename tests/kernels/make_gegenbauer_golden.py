"""Write gegenbauer_golden.json: Gegenbauer coefficients by mpmath, with enough digits for the largest α_ℓ.

python tests/kernels/make_gegenbauer_golden.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import comb
from pathlib import Path

import mpmath as mp

DIMENSIONS = (2, 3, 4, 8, 9, 32, 100, 1000)
DEGREES = (0, 1, 2, 3, 8, 20, 33, 64)
KERNELS = ("ntk 1", "ntk 3", "nngp 1", "nngp 3", "arc_cosine 0", "arc_cosine 1", "arc_cosine 2", "exponential")


def function(kernel: str) -> Callable[[mp.mpf], mp.mpf]:
    """Angle ↦ κ(cos θ), analytic on [0, π]."""
    name, _, number = kernel.partition(" ")

    def arc_cosine(theta: mp.mpf, order: int) -> mp.mpf:
        sine, cosine = mp.sin(theta), mp.cos(theta)
        return {
            0: 1 - theta / mp.pi,
            1: (sine + cosine * (mp.pi - theta)) / mp.pi,
            2: (3 * sine * cosine + (mp.pi - theta) * (1 + 2 * cosine**2)) / (3 * mp.pi),
        }[order]

    def network(theta: mp.mpf) -> mp.mpf:
        sigma = kernel_value = mp.cos(theta)
        for _ in range(int(number)):
            sigma, slope = arc_cosine(theta, 1), arc_cosine(theta, 0)
            kernel_value = kernel_value * slope + sigma
            theta = mp.acos(min(sigma, mp.mpf(1)))
        return kernel_value if name == "ntk" else sigma

    if name == "exponential":
        return lambda theta: mp.exp(mp.cos(theta))
    return network if name in ("ntk", "nngp") else lambda theta: arc_cosine(theta, int(number))


def dimension(degree: int, d: int) -> int:
    return comb(d + degree - 1, degree) - (comb(d + degree - 3, degree - 2) if degree > 1 else 0)


def polynomials(t: mp.mpf, d: int) -> list[mp.mpf]:
    """P_0 … P_q by the recursion."""
    values = [mp.mpf(1), t]
    for k in range(2, max(DEGREES) + 1):
        values.append(((2 * k + d - 4) * t * values[-1] - (k - 1) * values[-2]) / (k + d - 3))
    return values


def gauss_legendre(size: int) -> list[tuple[mp.mpf, mp.mpf]]:
    """Nodes and weights on [−1, 1], by Newton's method."""
    nodes = []
    for i in range(size):
        x = mp.cos(mp.pi * (i + mp.mpf(3) / 4) / (size + mp.mpf(1) / 2))
        for _ in range(12):
            before, value = mp.mpf(1), x
            for k in range(2, size + 1):
                before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
            slope = size * (x * value - before) / (x * x - 1)
            step = value / slope
            x -= step
            if abs(step) < mp.mpf(10) ** (-mp.mp.dps // 2):
                break
        before, value = mp.mpf(1), x
        for k in range(2, size + 1):
            before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
        slope = size * (x * value - before) / (x * x - 1)
        nodes.append((x - value / slope, 2 / ((1 - x * x) * slope**2)))
    return nodes


def coefficients(size: int) -> dict[str, dict[str, list[str]]]:
    """c_ℓ of all kernels, dimensions and degrees, by the integral over θ with a rule of some size."""
    rule = gauss_legendre(size)
    angles = [mp.pi / 2 * (1 + x) for x, _ in rule]
    values = {kernel: [function(kernel)(theta) for theta in angles] for kernel in KERNELS}
    result: dict[str, dict[str, list[str]]] = {kernel: {} for kernel in KERNELS}
    for d in DIMENSIONS:
        table = [polynomials(mp.cos(theta), d) for theta in angles]
        density = [w * mp.sin(theta) ** (d - 2) for theta, (_, w) in zip(angles, rule, strict=True)]
        total = mp.fsum(density)
        for kernel in KERNELS:
            products = [a * b / total for a, b in zip(density, values[kernel], strict=True)]
            result[kernel][str(d)] = []
            for degree in DEGREES:
                c = dimension(degree, d) * mp.fsum(a * row[degree] for a, row in zip(products, table, strict=True))
                result[kernel][str(d)].append(mp.nstr(c if abs(c) > mp.mpf(10) ** -130 else mp.mpf(0), 20))
    return result


def main() -> None:
    mp.mp.dps = 280
    golden = coefficients(900)
    assert golden == coefficients(1000), "the quadrature has not converged"
    text = json.dumps({"degrees": DEGREES, "coefficients": golden}, indent=1)
    Path(__file__).with_name("gegenbauer_golden.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
