"""Write biases.npz: kernels of infinitely wide networks with biases by neural-tangents, in float64.

In an environment of its own (Python 3.11):

    pip install "neural-tangents==0.6.5" "jax==0.4.25" "jaxlib==0.4.25" "numpy<2" "scipy<1.13"
    python tests/golden/make_biases.py

Keys of the file:

    fc_A (4, 5), fc_B (3, 5), im_A (3, 6, 5, 2), im_B (2, 6, 5, 2)
        inputs; row 0 of B equals row 0 of A, the last row of A is zero
    networks
        a JSON text: name of a network → its description in ntkit's words, with nn = ntkit.networks
    {name}_ntk, {name}_nngp
        K(A, B) of the network; the first two letters of the name tell which inputs

A description is evaluated here with `nn` the class Words, whose layers are those of neural-tangents, so the values are
of what is described. Scaling: Dense and Conv are Σ ↦ weight_std² Σ + bias_std² and Θ ↦ weight_std² (Θ + Σ) + bias_std²
(a convolution averages over its patch first, zeros outside the image), activations are plain. The input kernel is
⟨x, y⟩: neural-tangents divides it by the number of features or channels, so it is given inputs times its square root.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from neural_tangents import stax  # noqa: E402

WEIGHTS = "weight_std=1.3, bias_std=0.7"
DENSE = f"nn.Dense({WEIGHTS})"
CONV = f"nn.Conv(3, {WEIGHTS})"
VALID = f"nn.Conv(3, padding='valid', {WEIGHTS})"
STRIDED = f"nn.Conv(3, stride=2, {WEIGHTS})"
UNBIASED = "nn.Dense(weight_std=1.3)"
RELU = "nn.ReLU(normalize=False)"
LEAKY = "nn.LeakyReLU(0.2, normalize=False)"
ABS = "nn.Abs(normalize=False)"
ERF = "nn.Erf(normalize=False)"
GELU = "nn.GELU(normalize=False)"
SIN = "nn.Sin(normalize=False)"
POOL = "nn.GlobalAvgPool()"
FLATTEN = "nn.Flatten()"


def sequential(*layers: str) -> str:
    return f"nn.Sequential({', '.join(layers)})"


NETWORKS = {
    "fc_relu_L1": sequential(DENSE, RELU, DENSE),
    "fc_relu_L3": sequential(*(DENSE, RELU) * 3, DENSE),
    "fc_lrelu_L2": sequential(*(DENSE, LEAKY) * 2, DENSE),
    "fc_abs_L2": sequential(*(DENSE, ABS) * 2, DENSE),
    "fc_erf_L2": sequential(*(DENSE, ERF) * 2, DENSE),
    "fc_gelu_L2": sequential(*(DENSE, GELU) * 2, DENSE),
    "fc_sin_L2": sequential(*(DENSE, SIN) * 2, DENSE),
    "fc_residual": sequential(DENSE, RELU, f"nn.Residual(nn.Sequential(), {sequential(DENSE, RELU, DENSE)})", DENSE),
    "fc_first": sequential(DENSE, RELU, UNBIASED, RELU, UNBIASED),
    "im_gap_L2": sequential(*(CONV, RELU) * 2, POOL, DENSE),
    "im_flatten_L2": sequential(*(CONV, RELU) * 2, FLATTEN, DENSE),
    "im_valid_pool": sequential(VALID, RELU, "nn.AvgPool(2)", CONV, RELU, POOL, DENSE),
    "im_strided": sequential(STRIDED, RELU, CONV, POOL),
    "im_erf": sequential(CONV, ERF, POOL, DENSE),
    "im_linear": sequential(CONV, CONV, RELU, FLATTEN, DENSE),
}


class Words:
    """The names that descriptions use, as layers of neural-tangents."""

    @staticmethod
    def Dense(*, weight_std, bias_std=0.0):
        return stax.Dense(1, W_std=weight_std, b_std=bias_std, parameterization="ntk")

    @staticmethod
    def Conv(size, *, weight_std, bias_std=0.0, stride=1, padding="same"):
        return stax.Conv(
            1,
            (size, size),
            strides=(stride, stride),
            padding=padding.upper(),
            W_std=weight_std,
            b_std=bias_std,
            parameterization="ntk",
        )

    @staticmethod
    def AvgPool(size):
        return stax.AvgPool((size, size), strides=(size, size), padding="VALID")

    @staticmethod
    def Sequential(*layers):
        return stax.serial(*layers) if layers else stax.Identity()

    @staticmethod
    def Residual(*branches):
        branches = [stax.serial(branch, AS_GAUSSIAN) for branch in branches]
        return stax.serial(stax.FanOut(len(branches)), stax.parallel(*branches), stax.FanInSum())

    GlobalAvgPool = staticmethod(stax.GlobalAvgPool)
    Flatten = staticmethod(stax.Flatten)
    ReLU = staticmethod(lambda normalize: plain(normalize, stax.Relu()))
    LeakyReLU = staticmethod(lambda slope, normalize: plain(normalize, stax.LeakyRelu(slope)))
    Abs = staticmethod(lambda normalize: plain(normalize, stax.Abs()))
    Erf = staticmethod(lambda normalize: plain(normalize, stax.Erf()))
    GELU = staticmethod(lambda normalize: plain(normalize, stax.Gelu(approximate=False)))  # z Φ(z)
    Sin = staticmethod(lambda normalize: plain(normalize, stax.Sin()))


def plain(normalize, layer):
    if normalize:
        raise ValueError("neural-tangents' activations are not normalized; write normalize=False.")
    return layer


# FanInSum accepts only Gaussian branches. The sum of kernels is also exact for one non-Gaussian branch (here the
# identity after a ReLU), if the other branches end in their own weights and the next layer is a Dense.
AS_GAUSSIAN = (*stax.Identity()[:2], lambda k, **_: k.replace(is_gaussian=True))


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(20240601)
    values = {
        "fc_A": 0.6 * rng.standard_normal((4, 5)),
        "fc_B": 0.6 * rng.standard_normal((3, 5)),
        "im_A": 0.8 * rng.standard_normal((3, 6, 5, 2)),
        "im_B": 0.8 * rng.standard_normal((2, 6, 5, 2)),
    }
    for prefix in ("fc", "im"):
        values[f"{prefix}_B"][0] = values[f"{prefix}_A"][0]
        values[f"{prefix}_A"][-1] = 0
    return values


def main() -> None:
    values = inputs()
    arrays = values | {"networks": np.array(json.dumps(NETWORKS))}
    for name, description in NETWORKS.items():
        A, B = (values[f"{name[:2]}_{side}"] for side in "AB")
        root = A.shape[-1] ** 0.5
        kernel = eval(description, {"nn": Words})[2]
        result = kernel(A * root, B * root, ("ntk", "nngp"))
        for kind in ("ntk", "nngp"):
            K = np.asarray(getattr(result, kind))
            assert K.dtype == np.float64
            assert K.shape == (len(A), len(B))
            assert np.isfinite(K).all()
            arrays[f"{name}_{kind}"] = K
    np.savez_compressed(Path(__file__).with_name("biases.npz"), **arrays)


if __name__ == "__main__":
    main()
