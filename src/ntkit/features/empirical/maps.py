"""Sketched gradients of a torch module as features of its empirical neural tangent kernel."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ntkit._array import Array
from ntkit._batching import progress_bar, working_memory
from ntkit._estimator import AllOrNothing
from ntkit._random import RandomState, keyed, seed_sequence
from ntkit._state import Declared, Field, Integer, Seed, seed_numbers
from ntkit._validation import check_bool, check_choice, check_int, message
from ntkit.features.empirical import stores
from ntkit.features.empirical.plan import Measured, PlannedSketch, make_plan, measure, probe_plan

if TYPE_CHECKING:
    from ntkit.features.empirical.engine import Engine

OUTPUTS = ("margin", "loss", "logits", "random_logits")
PROBE = 256
"""Components per parameter that `fit` uses to measure the parameter's share of the kernel."""
MOST_ROWS = 256
"""Largest default batch size. Larger batches are not faster."""


class EmpiricalNTKFeatures(Declared, AllOrNothing, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Features of the empirical NTK of a torch module: Z(x)·Z(x') ≈ Σ_w ∂f(x)/∂w · ∂f(x')/∂w.

    The gradient of a linear or convolutional layer is Σₜ aₜ ⊗ bₜ over positions t: the input of the layer times the
    gradient of its output. Hooks record both in one forward and one backward pass of a batch, and each layer is
    sketched as the backward pass reaches it. A gradient of all weights is never formed. Depending on cost and measured
    variance, a layer gets a TensorSRHT of its factors or a CountSketch of their sum (formed for some rows of one layer
    at a time). A layer with fewer weights than components is not sketched. See ``docs/design/empirical-ntk.md``.

        E Z(x)·Z(x') = K(x, x'),    Var Z(x)·Z(x') = Σ_l V_l(x, x') / m_l,
        V_l = ‖G_l‖²‖G'_l‖² + ⟨G_l, G'_l⟩² − 2 Σ G²G'²   for a CountSketch of m_l components, and at most
        V_l = ‖G‖²‖G'‖² + ⟨G, G'⟩² + 2 (‖GᵀG'‖² + ‖GG'ᵀ‖² + tr(GᵀG'GᵀG'))   for a TensorSRHT.

    Parameters
    ----------
    module : torch.nn.Module
        A module in evaluation mode. It is neither changed nor copied, not even by ``sklearn.base.clone``.
    n_components : int
        Number m of features. They are allocated to the parameters so that the total variance on the rows of `fit` is
        minimal, m_l ∝ √V_l. No parameter gets more components than weights.
    output : {"margin", "loss", "logits", "random_logits"} or function
        Value to differentiate, one number per row.

        - "margin": f_y − log Σ_{c≠y} exp f_c for the class y of the row (by default the predicted class), as in [1]_.
          With a single logit, it is the logit times the sign of the class.
        - "loss": cross-entropy, or half the squared error of real targets.
        - "logits": every output f_c, with n_components // n_outputs features each, in consecutive blocks that use the
          same sketch. The inner product of two rows is Σ_c ∂f_c(x)·∂f_c(x'). Needs no targets, and one backward pass
          per output.
        - "random_logits": Σ_c s_c f_c with random signs s, in one backward pass.
        - a function (module, inputs, targets) → tensor of shape (n_rows,).

        For outputs at many positions, (rows, positions, classes), margins and losses are summed over the positions.
        Positions with the target −100 are ignored.
    layers : None, str or list of str
        Names of the layers or parameters to use, or patterns such as ``"blocks.*.weight"``. By default, all parameters
        that require gradients.
    n_probe : int
        Rows of `fit` used to measure each parameter's share of the kernel.
    batch_size : int or None
        Rows per pass. None: the most that fit into the working memory, at most 256.
    progress : bool
        Whether `transform` shows a progress bar.
    random_state : None, int, RandomState or Generator
        Seed of the sketches. Equal seeds give equal sketches on all devices, in all dtypes and for any batch size.

    Attributes
    ----------
    layers_ : list of dict
        For each parameter: `name`, `n_weights`, `source` of its gradients ("factors", "expanded" or "fallback"),
        `law` of its sketch ("identity", "count" or "tensor"), `n_components` and `share` of the kernel.
    notes_ : dict
        Notes by parameter name: "frozen" and "unused" parameters are left out; "fallback" parameters need slower
        per-sample gradients.
    n_outputs_ : int
        Number of blocks of features: the number of logits for output="logits", else 1.

    Notes
    -----
    Hooks record the factors of Linear, Conv1d to Conv3d, Embedding, LayerNorm, RMSNorm, GroupNorm, InstanceNorm,
    BatchNorm and MultiheadAttention, with or without tied weights. Parameters that are the same for all rows (tokens,
    positions) get one copy per row. `fit` compares all these gradients with plain autograd on two rows. Where they
    differ, and for all other parameters, it falls back to per-sample gradients of ``torch.func``, with a warning.

    The time is a forward and a backward pass (without the gradients of weights) plus, for each layer, at most about the
    time that these gradients would take. Features are float64 for a float64 module, else float32.

    References
    ----------
    .. [1] Park et al., "TRAK: Attributing model behavior at scale", ICML 2023.
    .. [2] Ahle et al., "Oblivious sketching of high-degree polynomial kernels", SODA 2020, Lemma 21.
    .. [3] Choe et al., "What is your data worth to GPT? LLM-scale data valuation with influence functions", 2024.

    Examples
    --------
    >>> import torch
    >>> from ntkit import EmpiricalNTKFeatures
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)).eval()
    >>> X, y = torch.randn(20, 5), torch.arange(20) % 3
    >>> features = EmpiricalNTKFeatures(net, n_components=256, random_state=0).fit(X, y)
    >>> features.transform(X, y).shape
    torch.Size([20, 256])
    >>> bool(features.estimate_error(X, y) < 0.1)
    True
    """

    _state: ClassVar[dict[str, Field]] = {"_seed": Seed(), "n_outputs_": Integer(1), "_n_features_out": Integer(1)}
    _remade: ClassVar[tuple[str, ...]] = ("_plan", "notes_", "layers_", "_signs", "_numbers_per_row", "_measured")
    _transient: ClassVar[tuple[str, ...]] = ("_cached_sketch",)
    _plan: tuple[PlannedSketch, ...]
    _seed: np.random.SeedSequence

    def __init__(
        self,
        module: Any,
        *,
        n_components: int = 8192,
        output: Any = "margin",
        layers: Any = None,
        n_probe: int = 64,
        batch_size: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.module = module
        self.n_components = n_components
        self.output = output
        self.layers = layers
        self.n_probe = n_probe
        self.batch_size = batch_size
        self.progress = progress
        self.random_state = random_state

    def __sklearn_clone__(self) -> Self:
        return type(self)(**self.get_params(deep=False))

    def fit(self, X: Any, y: Any = None) -> Self:
        """Analyse how the module uses its parameters, measure their shares of the kernel, and plan the sketches.

        Parameters
        ----------
        X : torch tensor, array, dict or tuple of these, or loader
            Rows on the first axis. Dicts are passed to the module by name, tuples by position. A ``DataLoader``, or
            another iterable that can be read repeatedly, yields inputs, (inputs, targets) or dicts.
        y : tensor or array, optional
            Targets. By default they come from the loader, or from the entry "labels" of a dict.

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            engine = self._engine(None)
            self._check_parameters()
            seed = seed_sequence(self.random_state, owner=type(self).__name__)
            rows = self._rows(X, y, engine).sample(self.n_probe)
            engine.check_mode()
            n_outputs = self._count_outputs(engine, rows)
            self._signs = self._draw_signs(seed, n_outputs)
            probe = self._engine(self._signs)
            parameters, notes, numbers = probe.discover(rows, self.layers)
            self._seed, self.notes_, self._numbers_per_row = seed, notes, numbers
            self.n_outputs_ = n_outputs if self.output == "logits" else 1
            found = self._measure(probe, parameters, rows, seed)
            each = max(self.n_components // self.n_outputs_, 1)
            self._plan = make_plan(parameters, found, each, largest=working_memory() // 16)
            self._measured = dict(zip([p.name for p in parameters], found, strict=True))
            self._describe()
        self._warn_of_fallback()
        return self

    def transform(self, X: Any, y: Any = None, *, out: str | PathLike[str] | None = None) -> Any:
        """Compute the features of rows, and return them or write them to disk.

        Parameters
        ----------
        X : torch tensor, array, dict or tuple of these, or loader
            See :meth:`fit`. A loader must not shuffle.
        y : tensor or array, optional
            Targets.
        out : path, optional
            A path that ends in ``.npy`` is written as a memory map. Any other path is a folder of safetensors files,
            each with some of the rows. After an interruption, a call with the same map, module and rows resumes there.

        Returns
        -------
        array of shape (n_rows, n_components)
            A NumPy array for NumPy input, else a tensor on the device of X. With `out`, a memory map or a
            ``FeatureShards`` (:mod:`ntkit.features.empirical`), which reads the files one by one.
        """
        check_is_fitted(self, "_plan")
        engine = self._engine(self._signs if self.output == "random_logits" else None)
        from ntkit.features.empirical.rows import fingerprint

        self._check_plan(engine)
        rows = self._rows(X, y, engine)
        if out is None:
            return self._in_memory(engine, rows)
        path = stores.check_out(out, f"{type(self).__name__}.transform")

        def blocks(start: int) -> Iterator[np.ndarray]:
            for Z in self._blocks(engine, rows, start):
                yield Z.cpu().numpy()

        if path.suffix == ".npy":
            return stores.write_npy(path, rows.n_rows, blocks)
        size = max(1, stores.SHARD_BYTES // (8 * self._n_features_out))
        about = repr((self._plan, seed_numbers(self._seed), str(self.output), rows.n_rows))
        return stores.write_shards(path, fingerprint(about, self.module, rows), blocks, n_rows_per_shard=size)

    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Any:
        """Fit the map, and compute the features of the same rows.

        Parameters
        ----------
        X : torch tensor, array, dict or tuple of these, or loader
        y : tensor or array, optional
        **options
            As for :meth:`transform`.

        Returns
        -------
        array of shape (n_rows, n_components)
        """
        return self.fit(X, y).transform(X, y, **options)

    def exact_kernel(self, X: Any, y: Any = None) -> Array:
        """Compute the exact kernel matrix that the features approximate, with the gradients of one parameter at a time.

        Parameters
        ----------
        X : torch tensor, array, or dict or tuple of these
        y : tensor or array, optional

        Returns
        -------
        array of shape (n_rows, n_rows), float64

        Examples
        --------
        >>> import torch
        >>> from ntkit import EmpiricalNTKFeatures
        >>> X = torch.randn(6, 5)
        >>> features = EmpiricalNTKFeatures(torch.nn.Linear(5, 1), output="logits", random_state=0).fit(X)
        >>> bool(torch.allclose(features.exact_kernel(X), (X @ X.T + 1).double(), atol=1e-5))
        True
        """
        check_is_fitted(self, "_plan")
        engine = self._engine(self._signs if self.output == "random_logits" else None)
        rows = self._rows(X, y, engine).sample(2**62)
        K: Any = 0.0
        for _, _, G in engine.gradients([each.parameter for each in self._plan], rows.take(slice(None))):
            G = G.double()
            K = K + G @ G.T
        return K.cpu().numpy() if rows.is_numpy else K.to(rows.home)

    def estimate_error(self, X: Any, y: Any = None) -> float:
        """Compute the relative error ‖Z Zᵀ − K‖_F / ‖K‖_F of this fitted map; K needs the gradient of every row.

        Parameters
        ----------
        X : torch tensor, array, or dict or tuple of these
        y : tensor or array, optional

        Returns
        -------
        float
        """
        K, Z = (np.asarray(getattr(v, "cpu", lambda v=v: v)()) for v in (self.exact_kernel(X, y), self.transform(X, y)))
        Z = Z.astype(np.float64)
        return float(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))

    def _check_parameters(self) -> None:
        name = type(self).__name__
        check_int(self.n_components, "n_components", name, minimum=1)
        check_int(self.n_probe, "n_probe", name, minimum=1)
        check_bool(self.progress, "progress", name)
        if self.batch_size is not None:
            check_int(self.batch_size, "batch_size", name, minimum=1)
        if not callable(self.output):
            check_choice(self.output, "output", name, OUTPUTS)

    def _engine(self, signs: np.ndarray | None) -> Engine:
        name = type(self).__name__
        try:
            import torch
        except ImportError as error:
            raise ImportError(f"{name} needs torch: pip install 'ntkit[torch]'.") from error
        from ntkit.features.empirical.engine import Engine
        from ntkit.features.empirical.rows import check_device

        if not isinstance(self.module, torch.nn.Module):
            raise TypeError(message(name, "module", "a torch.nn.Module", self.module))
        device, dtype = check_device(self.module, name)
        return Engine(self.module, self.output, name, device, dtype, signs)

    def _rows(self, X: Any, y: Any, engine: Engine) -> Any:
        from ntkit.features.empirical.rows import as_rows

        return as_rows(X, y, type(self).__name__, device=engine.device, dtype=engine.dtype)

    def _count_outputs(self, engine: Engine, rows: Any) -> int:
        from ntkit.features.empirical.engine import plain_mode

        batch = rows.take(slice(0, 1))
        with plain_mode():
            values = engine.values(engine.module, batch.inputs, batch.targets, 1)
        if not values.requires_grad:
            engine.choose(self.layers)  # raises if all parameters are frozen
            rule = "a module whose output depends on its parameters, without torch.no_grad() or detach() in between"
            raise ValueError(message(type(self).__name__, "module", rule, type(self.module).__name__))
        return values.shape[1]

    def _draw_signs(self, seed: np.random.SeedSequence, n_outputs: int) -> np.ndarray | None:
        """Draw signs of logits. With many logits, `fit` also measures shares on one such random combination."""
        if self.output not in ("logits", "random_logits"):
            return None
        from ntkit.features.empirical.engine import draw_output_signs

        return draw_output_signs(seed, n_outputs)

    def _measure(self, engine: Engine, parameters: Any, rows: Any, seed: np.random.SeedSequence) -> list[Measured]:
        from ntkit.features.empirical.draws import ModuleSketch

        plan = probe_plan(parameters, PROBE)
        sketch = ModuleSketch(plan, keyed(seed, "probe"))
        step = self._batch_rows(engine)
        Z = np.concatenate([
            engine.features(plan, sketch, batch, 1).cpu().numpy() for batch in rows.batches(step)
        ])  # fmt: skip
        if not Z.any():
            rule = "a module whose output has gradients that are not all zero"
            raise ValueError(message(type(self).__name__, "module", rule, type(self.module).__name__))
        return [measure(Z[:, each.columns], exact=each.law == "identity", tensor=each.law == "tensor") for each in plan]

    def _describe(self) -> None:
        self._n_features_out = self.n_outputs_ * sum(each.n_components for each in self._plan)
        self.layers_ = [
            {
                "name": each.parameter.name,
                "n_weights": each.parameter.size,
                "source": each.parameter.source,
                "law": each.law,
                "n_components": each.n_components,
                "share": each.share,
            }
            for each in self._plan
        ]

    def _batch_rows(self, engine: Engine) -> int:
        if self.batch_size is not None:
            return check_int(self.batch_size, "batch_size", type(self).__name__, minimum=1)
        import torch

        like = torch.empty(0, device=engine.device)
        size = 4 * (self._numbers_per_row + 2 * self.n_components)
        return max(1, min(MOST_ROWS, working_memory(like) // size))

    @property
    def _sketch(self) -> Any:
        if "_cached_sketch" not in self.__dict__:
            from ntkit.features.empirical.draws import ModuleSketch

            self._cached_sketch = ModuleSketch(self._plan, self._seed)
        return self._cached_sketch

    def _check_plan(self, engine: Engine) -> None:
        """Raise unless the module has the same parameters as in fit."""
        engine.check_mode()
        sizes = {name: p.numel() for name, p in self.module.named_parameters()}
        for each in self._plan:
            if sizes.get(each.parameter.name) != each.parameter.size:
                rule = (
                    f"a module with the parameter '{each.parameter.name}' of {each.parameter.size} weights, as in fit"
                )
                remedy = "Fit the map again."
                raise ValueError(message(type(self).__name__, "module", rule, type(self.module).__name__, remedy))

    def _blocks(self, engine: Engine, rows: Any, start: int = 0) -> Iterator[Any]:
        sketch, step = self._sketch, self._batch_rows(engine)
        with progress_bar(type(self).__name__ if self.progress else None, rows.n_rows) as bar:
            bar.update(start)
            for batch in rows.batches(step, start):
                yield engine.features(self._plan, sketch, batch, self.n_outputs_)
                bar.update(batch.n_rows)

    def _in_memory(self, engine: Engine, rows: Any) -> Any:
        import torch

        parts = [Z.to(rows.home) for Z in self._blocks(engine, rows)]
        Z = torch.cat(parts)
        return Z.numpy() if rows.is_numpy else Z

    def _warn_of_fallback(self) -> None:
        names = [name for name, note in self.notes_.items() if note == "fallback"]
        if names:
            listed = ", ".join(repr(name) for name in names[:5]) + " and more" * (len(names) > 5)
            warnings.warn(
                f"{type(self).__name__} cannot factor the gradients of {listed}, and falls back to per-sample "
                "gradients of torch.func, which are slower. Exclude these parameters with `layers`, or freeze them.",
                stacklevel=3,
            )
