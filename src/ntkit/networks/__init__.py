"""Descriptions of infinitely wide networks: frozen data, no computation.

A network is written once; its exact kernel, its sketched features and its finite-width features are
three functions of this one description.

>>> from ntkit import networks as nn
>>> net = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense())
>>> net
Sequential(Conv(3), ReLU(), GlobalAvgPool(), Dense())
>>> nn.output_shape(net, (32, 32, 3))
(None,)

Scaling. Weights are standard normal times ``weight_std`` / √fan_in, there are no biases, and the input
kernel is ⟨x, y⟩ without division by the number of features or channels. A convolution averages over its
patch, positions outside the image counting as zeros. An activation σ is divided by √E[σ(z)²], z ~ N(0, 1)
(unless ``normalize=False``), so a ReLU layer preserves norms.

Shapes. Vectors are (features,), images (height, width, channels); None stands for the infinite width.
"""

from ntkit.networks._layers import (
    GELU,
    Abs,
    Activation,
    AvgPool,
    Conv,
    Dense,
    Erf,
    Flatten,
    Gaussian,
    GlobalAvgPool,
    Layer,
    LeakyReLU,
    Normalize,
    ReLU,
    Residual,
    Sequential,
    Sin,
)
from ntkit.networks._presets import cntk, fully_connected, myrtle
from ntkit.networks._shapes import output_shape

__all__ = [
    "GELU",
    "Abs",
    "Activation",
    "AvgPool",
    "Conv",
    "Dense",
    "Erf",
    "Flatten",
    "Gaussian",
    "GlobalAvgPool",
    "Layer",
    "LeakyReLU",
    "Normalize",
    "ReLU",
    "Residual",
    "Sequential",
    "Sin",
    "cntk",
    "fully_connected",
    "myrtle",
    "output_shape",
]
