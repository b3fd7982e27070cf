"""Networks that papers are about."""

from __future__ import annotations

from ntkit._validation import check_int, message
from ntkit.networks.activations import ReLU
from ntkit.networks.layers import AvgPool, Conv, Dense, GlobalAvgPool, Sequential, Size


def fully_connected(depth: int) -> Sequential:
    """(Dense, ReLU) × depth, Dense: the network of Definition 1, NTK(x, x) = (depth + 1)‖x‖².

    Parameters
    ----------
    depth : int ≥ 1
        Number L of ReLU layers.

    Examples
    --------
    >>> fully_connected(1)
    Sequential(Dense(), ReLU(), Dense())
    """
    check_int(depth, "depth", "fully_connected", minimum=1)
    return Sequential(*(Dense(), ReLU()) * depth, Dense())


def cntk(depth: int, kernel_size: Size = 3) -> Sequential:
    """(Conv, ReLU) × depth and global average pooling: the network of Definition 2.

    The first convolution and the readout are not trained, as in the definition; at depth 1 nothing is
    left to train and the tangent kernel is zero.

    Parameters
    ----------
    depth : int ≥ 1
        Number L of convolutions.
    kernel_size : int or (int, int), default=3
        Size q of the filters.

    Examples
    --------
    >>> cntk(2)
    Sequential(
        Conv(3, trainable=False),
        ReLU(),
        Conv(3),
        ReLU(),
        GlobalAvgPool(),
        Dense(trainable=False),
    )
    """
    check_int(depth, "depth", "cntk", minimum=1)
    first = (Conv(kernel_size, trainable=False), ReLU())
    rest = (Conv(kernel_size), ReLU()) * (depth - 1)
    return Sequential(*first, *rest, GlobalAvgPool(), Dense(trainable=False))


def myrtle(depth: int) -> Sequential:
    """Myrtle network of 5, 7 or 10 layers [1]_: 3 × 3 convolutions, ReLU, 2 × 2 average pooling.

    On 32 × 32 images the global pooling at the end equals the three poolings of the original.

    Parameters
    ----------
    depth : {5, 7, 10}
        Number of layers with weights.

    References
    ----------
    .. [1] Shankar et al., "Neural Kernels Without Tangents", ICML 2020, arXiv:2003.02237.

    Examples
    --------
    >>> myrtle(5).layers[4]
    AvgPool(2)
    """
    blocks = {5: (2, 1, 1), 7: (2, 2, 2), 10: (3, 3, 3)}
    if check_int(depth, "depth", "myrtle") not in blocks:
        raise ValueError(message("myrtle", "depth", "5, 7 or 10", depth))
    conv = (Conv(3), ReLU())
    first, second, third = blocks[depth]
    return Sequential(*conv * first, AvgPool(2), *conv * second, AvgPool(2), *conv * third, GlobalAvgPool(), Dense())
