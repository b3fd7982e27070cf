"""Descriptions of infinitely wide networks: frozen data, no computation.

A network is described once. Its exact kernel, its sketched features and its finite-width features are three
functions of this description.

>>> from ntkit import networks as nn
>>> net = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense())
>>> net
Sequential(Conv(3), ReLU(), GlobalAvgPool(), Dense())
>>> nn.output_shape(net, (32, 32, 3))
(None,)

Scaling. Weights are standard normal times ``weight_std`` / √fan_in, biases standard normal times ``bias_std`` (0
unless given), and the input kernel is ⟨x, y⟩ without division by the number of features or channels. A convolution
averages over its patch; positions outside the image count as zeros. An activation σ is divided by √E[σ(z)²],
z ~ N(0, 1) (unless ``normalize=False``), so a ReLU layer preserves norms.

Shapes. Vectors are (features,) and images are (height, width, channels). None stands for infinite width.
"""

from ntkit.networks.activations import (
    GELU,
    Abs,
    Activation,
    Erf,
    Gaussian,
    LeakyReLU,
    PiecewiseLinear,
    ReLU,
    Sin,
)
from ntkit.networks.fold import Algebra, UnsupportedError, fold
from ntkit.networks.layers import (
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    Layer,
    Normalize,
    Residual,
    Sequential,
)
from ntkit.networks.presets import cntk, fully_connected, myrtle
from ntkit.networks.shapes import Shapes, output_shape

__all__ = [
    "GELU",
    "Abs",
    "Activation",
    "Algebra",
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
    "PiecewiseLinear",
    "ReLU",
    "Residual",
    "Sequential",
    "Shapes",
    "Sin",
    "UnsupportedError",
    "cntk",
    "fold",
    "fully_connected",
    "myrtle",
    "output_shape",
]
