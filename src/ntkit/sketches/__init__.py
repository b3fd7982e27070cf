"""Oblivious sketches: random linear maps that keep inner products.

A *distribution* (sizes and law, no draws) has ``sample(rng)``, which gives an *operator* (the draws) with
``apply(X)``, ``apply_transpose(V)``, ``as_linear_operator()`` and, for small sizes, ``matrix()``. Operators compose,
``A @ B``, and add, ``direct_sum(A, B)``.
"""

from ntkit.sketches.base import direct_sum
from ntkit.sketches.countsketch import OSNAP, CountSketch
from ntkit.sketches.hadamard import fwht
from ntkit.sketches.poly import PolySketch
from ntkit.sketches.power import PowerSketch
from ntkit.sketches.srht import SRHT
from ntkit.sketches.tensor import TensorSketch, TensorSRHT

__all__ = [
    "OSNAP",
    "SRHT",
    "CountSketch",
    "PolySketch",
    "PowerSketch",
    "TensorSRHT",
    "TensorSketch",
    "direct_sum",
    "fwht",
]
