"""torch modules of fitted estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ntkit import _expression
from ntkit._validation import message
from ntkit.graphs import Graph, estimator_graph
from ntkit.torch import lowering


class GraphModule(nn.Module):
    """A graph of array operations as a module; base class of :class:`Features` and :class:`Model`.

    The constants of the graph are buffers. Kernels and weights are computed in float64: their buffers stay in float64
    whatever precision the module is moved to (float32 on devices without float64).
    """

    def __init__(self, graph: Graph, dtype: torch.dtype | None, device: Any):
        super().__init__()
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise TypeError(message(type(self).__name__, "dtype", "a floating torch.dtype or None", dtype))
        self.shape = tuple(graph.source.shape[1:])
        self.body = lowering.module(graph, dtype)
        if device is not None:
            self.to(device)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of rows and results."""
        return self.body.precision.dtype

    def _results(self, x: Tensor) -> Any:
        if not torch.compiler.is_compiling():
            self._check(x)
        return self.body(x.reshape(-1, *self.shape).to(self.dtype))

    def _check(self, x: Tensor) -> None:
        name = type(self).__name__
        if not isinstance(x, Tensor):
            raise TypeError(message(name, "x", "a torch tensor", x))
        size = 1
        for n in self.shape:
            size *= n
        if x.ndim < 2 or x[:1].numel() not in (size, 0) or (x.shape[0] and x.numel() != size * x.shape[0]):
            raise ValueError(message(name, "x", f"of shape (n, {', '.join(map(str, self.shape))})", x))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        wide = {name: getattr(self.body, name) for name in self.body.wide_names}
        super()._apply(fn, recurse)
        for name, original in wide.items():
            moved = getattr(self.body, name)
            if moved.dtype != torch.float64 and moved.device.type != "mps":
                self.body._buffers[name] = original.to(moved.device)
        return self


class Features(GraphModule):
    """A fitted feature map, scaler or pipeline of them as an ``nn.Module``.

    Parameters
    ----------
    transformer : fitted transformer
        A feature map or a scaler of ntkit, a :class:`~ntkit.LearnedMetric`, some scalers of scikit-learn, or a
        ``Pipeline`` of such steps.
    dtype : torch.dtype, default=None
        Dtype of rows and results; None: torch's default. ``.to(dtype)`` changes it.
    device : torch.device or str, default=None
        Device of the buffers; None: the CPU.

    Attributes
    ----------
    n_components : int
        Number of features.

    Notes
    -----
    The module gives the same result as ``transform``, up to rounding, by operations that torch can differentiate,
    compile (``torch.compile(module, fullgraph=True)``) and export (``torch.export.export``). Its arrays are buffers:
    they are in ``state_dict()`` and move with ``.to()``, but optimizers do not change them. The rows are not checked
    for NaN and infinity.

    At a cusp of the kernel, such as x = y for the NTK and the Laplace kernel, the discontinuous part of the gradient is
    left out. Near such points (cosines that round to 1, distances that round to 0), values have half of the digits.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from ntkit import NTKFeatures
    >>> from ntkit.torch import Features
    >>> X = np.random.default_rng(0).standard_normal((100, 5))
    >>> features = NTKFeatures(n_components=64, random_state=0).fit(X)
    >>> module = torch.nn.Sequential(torch.nn.Linear(5, 5), Features(features), torch.nn.Linear(64, 1))
    >>> module(torch.zeros(3, 5)).shape
    torch.Size([3, 1])
    """

    n_components: int

    def __init__(self, transformer: Any, *, dtype: torch.dtype | None = None, device: Any = None):
        graph = estimator_graph(transformer, type(self).__name__)
        if "features" not in graph.outputs:
            remedy = "Use ntkit.torch.Model."
            raise TypeError(message("Features", "transformer", "a transformer, not a model", transformer, remedy))
        super().__init__(graph, dtype, device)
        self.n_components = int(graph.outputs["features"].shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        """Compute the features of the rows of x.

        Parameters
        ----------
        x : tensor of shape (n, n_features), or images

        Returns
        -------
        tensor of shape (n, n_components)
        """
        return self._results(x)["features"]


class Model(GraphModule):
    """A fitted model as an ``nn.Module``, with predictions that torch can differentiate.

    Parameters
    ----------
    model : fitted model
        A ridge model (regressor or classifier) on features or an exact kernel, a search over such models, or a
        ``Pipeline`` that ends in one of them.
    dtype : torch.dtype, default=None
        Dtype of rows and results; None: torch's default.
    device : torch.device or str, default=None
        Device of the buffers; None: the CPU.

    Attributes
    ----------
    classes : ndarray or None
        Classes, in the order of the columns of probabilities; None for regression.

    Notes
    -----
    The results equal ``predict`` or ``predict_proba``, up to rounding. The notes on :class:`Features` apply.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from ntkit import KernelRidge
    >>> from ntkit.torch import Model
    >>> X = np.random.default_rng(0).standard_normal((50, 3))
    >>> model = KernelRidge("gaussian").fit(X, X[:, 0] * X[:, 1])
    >>> module = Model(model, dtype=torch.float64)
    >>> x = torch.tensor(X[:4], requires_grad=True)
    >>> bool(np.allclose(module(x).detach(), model.predict(X[:4])))
    True
    >>> module(x).sum().backward()
    >>> x.grad.shape
    torch.Size([4, 3])
    """

    def __init__(self, model: Any, *, dtype: torch.dtype | None = None, device: Any = None):
        graph = estimator_graph(model, type(self).__name__)
        if "features" in graph.outputs:
            raise TypeError(message("Model", "model", "a model, not a transformer", model, "Use ntkit.torch.Features."))
        if "index" in graph.outputs and "probabilities" not in graph.outputs:
            remedy = "Fit it with held-out rows (solver='direct' or 'iterative')."
            raise TypeError(message("Model", "model", "a classifier with probabilities", model, remedy))
        self._name = "probabilities" if "index" in graph.outputs else "prediction"
        super().__init__(graph, dtype, device)
        self.classes = getattr(_expression.final(model), "classes_", None)

    def forward(self, x: Tensor) -> Tensor:
        """Compute predictions of a regressor, or class probabilities of a classifier.

        Parameters
        ----------
        x : tensor of shape (n, n_features), or images

        Returns
        -------
        tensor of shape (n,) or (n, n_targets) or (n, n_classes)
        """
        return self._results(x)[self._name]
