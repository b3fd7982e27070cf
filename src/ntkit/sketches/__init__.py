"""Oblivious sketches: random linear maps that approximately preserve inner products.

A *distribution* describes a random map by its sizes and its law and holds no draws. Its method ``sample(rng)`` returns
an *operator*, which holds the draws and has ``apply(X)``, ``apply_transpose(V)``, ``as_linear_operator()`` and, for
small sizes, ``matrix()``. ``A @ B`` composes two operators; ``direct_sum(A, B)`` applies them to separate features.
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
