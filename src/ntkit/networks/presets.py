"""Networks from the literature."""

from __future__ import annotations

from ntkit._validation import check_int, message
from ntkit.networks.activations import ReLU
from ntkit.networks.layers import AvgPool, Conv, Dense, GlobalAvgPool, Sequential, Size


def fully_connected(depth: int) -> Sequential:
    """Describe (Dense, ReLU) × depth, Dense: the network of Definition 1 in [1]_, with NTK(x, x) = (depth + 1)‖x‖².

    Parameters
    ----------
    depth : int ≥ 1
        Number L of ReLU layers.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021,
       Definition 1.

    Examples
    --------
    >>> fully_connected(1)
    Sequential(Dense(), ReLU(), Dense())
    """
    check_int(depth, "depth", "fully_connected", minimum=1)
    return Sequential(*(Dense(), ReLU()) * depth, Dense())


def cntk(depth: int, kernel_size: Size = 3) -> Sequential:
    """Describe (Conv, ReLU) × depth and global average pooling: the network of Definition 2 in [1]_.

    The first convolution and the readout are not trained, as in the definition. At depth 1 there is therefore nothing
    to train, and the tangent kernel is zero.

    Parameters
    ----------
    depth : int ≥ 1
        Number L of convolutions.
    kernel_size : int or (int, int), default=3
        Size q of the filters.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021,
       Definition 2.

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
    """Describe the Myrtle network of 5, 7 or 10 layers [1]_: 3 × 3 convolutions, ReLU, 2 × 2 average pooling.

    On 32 × 32 images, the global pooling at the end equals the last three poolings of the original.

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
