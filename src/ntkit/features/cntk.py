"""Features of the convolutional NTK of Definition 2: Definition 3."""

from __future__ import annotations

from ntkit import networks
from ntkit._random import RandomState
from ntkit._validation import check_int, message
from ntkit.features.network import NetworkMap
from ntkit.networks import Layer


class CNTKSketch(NetworkMap):
    """Features of the convolutional NTK with global average pooling: Definition 3 of [1]_, linear in the pixels.

    Every pixel has features φ of the NNGP kernel and ψ of the tangent kernel. With μ the patch of a pixel, the direct
    sum of φ over its q² pixels, divided by the root of N, the mean of their squared norms,

        φ^(h) = √N ⊕_l √c_l Z_l(μ),    φ̇^(h) = ⊕_l √b_l Z_l(μ),    ψ^(h) = patch of Q²(ψ^(h−1) ⊗ φ̇^(h)) ⊕ φ^(h),

    Z_l a sketch of μ^{⊗l}; Z(x) is the mean over all pixels of Q²(ψ^(L−1) ⊗ φ̇^(L)). The kernel is
    :func:`ntkit.kernels.cntk`.

    Parameters
    ----------
    depth : int
        Number L of convolutions. At L = 1 the definition trains nothing: kernel and features are zero.
    kernel_size : int or (int, int)
        Size q of the filters.
    n_components : int
        Number of features.
    image_shape : (height, width, channels) or None
        For images given as flat rows. None: X has the shape (n, height, width, channels); flat rows are then images of
        one pixel.
    method : {"sketch", "random"}
        Sketched series, as in Definition 3, or random units, as in Algorithm 2; see :class:`NetworkFeatures`.
    kind : {"ntk", "nngp", "both"}
        Which kernel of the network.
    hidden_components, derivative_components : int or None
        Components of φ^(h) and of Q²(…) before the last layer, and of φ̇^(h); see :class:`NetworkFeatures`.
    degree, derivative_degree : int
        Degrees of the polynomials for κ₁ and κ₀ (2p + 2 and 2p′ + 1). Higher ones follow the kernel more closely where
        tens of thousands of components bring the error of the sketch below that of the polynomials (0.006 and 0.05 of
        κ₁ and κ₀ at worst); on CIFAR-10 they did not raise accuracy.
    directions, normalize, replace, precision, batch_size, progress, random_state
        See :class:`NetworkFeatures`.

    Attributes
    ----------
    image_shape_ : tuple
    n_features_in_ : int
        height · width · channels.
    ntk_columns_, nngp_columns_ : slice
        Columns of the features of either kernel.

    Notes
    -----
    Theorem 4 of [1]_: ``|Z(x)·Z(y) − Θ_cntk(x, y)| ≤ ε Θ_cntk(x, y)`` with probability 1 − δ for suitable sizes, in
    time linear in the pixels, where the exact kernel takes the square of their number for every pair of images.

    What differs from the letter of the definition, for speed and accuracy at equal size, is told at
    :class:`NetworkFeatures` and in ``docs/design/convolutional.md``.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021,
       Definition 3 and Theorem 4.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import CNTKSketch
    >>> from ntkit.kernels import cntk
    >>> X = np.random.default_rng(0).standard_normal((10, 6, 6, 3))
    >>> Z = CNTKSketch(depth=2, n_components=4096, random_state=0).fit_transform(X)
    >>> K = cntk(X, depth=2)
    >>> bool(np.linalg.norm(Z @ Z.T - K) < 0.1 * np.linalg.norm(K))
    True
    """

    def __init__(
        self,
        depth: int = 3,
        kernel_size: int | tuple[int, int] = 3,
        n_components: int = 1024,
        image_shape: tuple[int, int, int] | None = None,
        *,
        method: str = "sketch",
        kind: str = "ntk",
        hidden_components: int | None = None,
        derivative_components: int | None = None,
        directions: str = "hadamard",
        degree: int = 2,
        derivative_degree: int = 3,
        normalize: bool = True,
        replace: bool = False,
        precision: str | None = None,
        batch_size: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.depth = depth
        self.kernel_size = kernel_size
        self.n_components = n_components
        self.image_shape = image_shape
        self.method = method
        self.kind = kind
        self.hidden_components = hidden_components
        self.derivative_components = derivative_components
        self.directions = directions
        self.degree = degree
        self.derivative_degree = derivative_degree
        self.normalize = normalize
        self.replace = replace
        self.precision = precision
        self.batch_size = batch_size
        self.progress = progress
        self.random_state = random_state

    def _net(self) -> Layer:
        name = type(self).__name__
        check_int(self.depth, "depth", name, minimum=1)
        rule = "an int ≥ 1 or a pair (tuple) of them"
        if isinstance(self.kernel_size, list):
            raise TypeError(message(name, "kernel_size", rule, self.kernel_size))
        sizes = self.kernel_size if isinstance(self.kernel_size, tuple) else (self.kernel_size, self.kernel_size)
        if len(sizes) != 2:
            raise ValueError(message(name, "kernel_size", rule, self.kernel_size))
        for size in sizes:
            check_int(size, "kernel_size", name, minimum=1)
        return networks.cntk(self.depth, self.kernel_size)

    @property
    def _flat_images(self) -> bool:
        return True
