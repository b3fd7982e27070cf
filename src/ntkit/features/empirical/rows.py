"""Inputs of a torch module: tensors, arrays, dicts and tuples of these, and loaders of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ntkit import _array
from ntkit._validation import describe, message, real_array

LABELS = "labels"  # key of the targets in dicts of tensors, as in Hugging Face's data sets


class Batch(NamedTuple):
    """A batch of rows: inputs (a tensor, or a tuple or dict of tensors) and targets, or None."""

    inputs: Any
    targets: Tensor | None
    n_rows: int


class TensorRows:
    """Rows that are all in memory."""

    def __init__(self, X: Any, y: Any, owner: str, *, device: torch.device, dtype: torch.dtype):
        self.owner, self.device, self.dtype = owner, device, dtype
        X, y = _split_labels(X, y)
        self.leaves = _leaves(X, owner)
        self.kind = type(X) if isinstance(X, tuple | list) else Mapping if isinstance(X, Mapping) else None
        self.is_numpy = not any(map(_array.is_torch, self.leaves.values()))
        self.y = None if y is None else _checked(y, "y", owner)
        self.n_rows = _n_rows([*self.leaves.values(), *([] if self.y is None else [self.y])], owner)
        self.home = next((leaf.device for leaf in self.leaves.values() if _array.is_torch(leaf)), torch.device("cpu"))

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches of `size` rows, starting at the row `start`."""
        for first in range(start, self.n_rows, size):
            yield self.take(slice(first, min(first + size, self.n_rows)))

    def take(self, rows: Any) -> Batch:
        """Return some rows as a batch on the device of the module."""
        leaves = {key: self._moved(leaf, rows) for key, leaf in self.leaves.items()}
        targets = None if self.y is None else self._moved(self.y, rows, target=True)
        n_rows = len(next(iter(leaves.values())))
        if self.kind is None:
            return Batch(leaves[""], targets, n_rows)
        return Batch(leaves if self.kind is Mapping else tuple(leaves.values()), targets, n_rows)

    def sample(self, n_rows: int) -> TensorRows:
        """Return at most `n_rows` rows, evenly spaced."""
        if self.n_rows <= n_rows:
            return self
        return self.at(np.linspace(0, self.n_rows - 1, n_rows).astype(np.int64))

    def at(self, rows: np.ndarray) -> TensorRows:
        """Return the rows with the given indices."""
        chosen = object.__new__(TensorRows)
        vars(chosen).update(vars(self))
        chosen.leaves = {key: _take(leaf, rows) for key, leaf in self.leaves.items()}
        chosen.y = None if self.y is None else _take(self.y, rows)
        chosen.n_rows = len(rows)
        return chosen

    def _moved(self, values: Any, rows: Any, *, target: bool = False) -> Tensor:
        values = _take(values, rows)
        if _array.is_numpy(values):
            tensor = torch.from_numpy(np.array(values))  # a copy, because the array may be read-only
            if tensor.is_floating_point():
                tensor = tensor.to(torch.float64 if target and self.dtype == torch.float64 else self.dtype)
            elif tensor.dtype != torch.bool:
                tensor = tensor.to(torch.int64)
            values = tensor
        if values.is_inference():  # autograd does not accept tensors made in inference mode
            with torch.inference_mode(False):
                values = values.clone()
        return values.detach().to(self.device)


class Loader:
    """Rows that come in batches: a DataLoader, or any iterable that can be read repeatedly."""

    is_numpy = False

    def __init__(self, X: Any, owner: str, *, device: torch.device, dtype: torch.dtype):
        self.X, self.owner, self.device, self.dtype = X, owner, device, dtype
        self.home = torch.device("cpu")
        dataset, batches = getattr(X, "dataset", None), getattr(X, "batch_sampler", None)
        sized = hasattr(dataset, "__len__") and not getattr(X, "drop_last", False)
        self.n_rows = len(dataset) if sized and dataset is not None else None
        self.shuffles = isinstance(getattr(batches, "sampler", None), torch.utils.data.RandomSampler)

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches of at most `size` rows, starting at the row `start`."""
        if self.shuffles:
            raise ValueError(
                f"The 'X' parameter of {self.owner}.transform must be a loader that keeps the order of rows. Got a "
                "DataLoader that shuffles instead. Create it with shuffle=False."
            )
        done = 0
        for rows in self._items():
            if done + rows.n_rows > start:
                yield from rows.batches(size, max(start - done, 0))
            done += rows.n_rows
        if not done:
            raise ValueError(self._empty())

    def _empty(self) -> str:
        return f"The 'X' parameter of {self.owner} must have at least one row. Got an empty loader."

    def _items(self) -> Iterator[TensorRows]:
        for item in self.X:
            X, y = item, None
            if isinstance(item, tuple | list) and len(item) > 1:
                X, y = (item[0] if len(item) == 2 else tuple(item[:-1])), item[-1]
            elif isinstance(item, tuple | list):
                X = item[0]
            yield TensorRows(X, y, self.owner, device=self.device, dtype=self.dtype)

    def sample(self, n_rows: int) -> TensorRows:
        """Return at most the first `n_rows` rows."""
        found: list[TensorRows] = []
        for rows in self._items():
            found.append(rows)
            if sum(each.n_rows for each in found) >= n_rows:
                break
        if not found:
            raise ValueError(self._empty())
        first = found[0]
        fits = [each for each in found if _shapes(each) == _shapes(first)]  # batches may be padded to different lengths
        joined = first.at(np.arange(first.n_rows))
        joined.leaves = {key: _joined([each.leaves[key] for each in fits]) for key in first.leaves}
        joined.y = None if first.y is None else _joined([each.y for each in fits])
        joined.n_rows = sum(each.n_rows for each in fits)
        return joined.at(np.arange(min(n_rows, joined.n_rows)))


def as_rows(X: Any, y: Any, owner: str, *, device: torch.device, dtype: torch.dtype) -> TensorRows | Loader:
    """Wrap any supported input as rows."""
    arrays = _array.is_torch(X) or _array.is_array(X) or isinstance(X, Mapping | tuple | list) or hasattr(X, "iloc")
    if arrays or not hasattr(X, "__iter__") or isinstance(X, str | bytes):
        return TensorRows(X, y, owner, device=device, dtype=dtype)
    if y is not None:
        remedy = "A loader must yield (inputs, targets) itself."
        raise ValueError(message(owner, "y", "None if X is a loader of batches", y, remedy))
    if iter(X) is X:
        remedy = "Pass a DataLoader, a list or another object that restarts whenever it is iterated over."
        raise TypeError(message(owner, "X", "something that can be read more than once", X, remedy))
    return Loader(X, owner, device=device, dtype=dtype)


def _split_labels(X: Any, y: Any) -> tuple[Any, Any]:
    if isinstance(X, Mapping) and y is None and LABELS in X:
        return {key: value for key, value in X.items() if key != LABELS}, X[LABELS]
    return X, y


def _leaves(X: Any, owner: str) -> dict[str, Any]:
    if isinstance(X, Mapping):
        leaves = {str(key): value for key, value in X.items() if value is not None}
    elif isinstance(X, tuple) or (isinstance(X, list) and X and any(map(_array.is_array, X))):
        leaves = {str(i): value for i, value in enumerate(X)}
    else:
        leaves = {"": X}
    if not leaves:
        raise ValueError(message(owner, "X", "a tensor, an array, or a dict or tuple with at least one", X))
    return {key: _checked(value, "X", owner) for key, value in leaves.items()}


def _checked(values: Any, name: str, owner: str) -> Any:
    values = real_array(values, name, owner)
    if not values.ndim:
        raise ValueError(message(owner, name, "an array with one entry for each row", values))
    return values if _array.is_torch(values) else np.asarray(values)


def _n_rows(leaves: list[Any], owner: str) -> int:
    sizes = [len(leaf) for leaf in leaves]
    if len(set(sizes)) > 1:
        raise ValueError(f"All inputs and targets of {owner} must have the same number of rows. Got {sizes} instead.")
    if not sizes[0]:
        raise ValueError(message(owner, "X", "non-empty, with at least one row", leaves[0]))
    return sizes[0]


def _take(values: Any, rows: Any) -> Any:
    if _array.is_torch(values) and isinstance(rows, np.ndarray):
        return values[torch.from_numpy(rows).to(values.device)]
    return values[rows]


def _shapes(rows: TensorRows) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape[1:]) for leaf in rows.leaves.values()]


def _joined(values: list[Any]) -> Any:
    return torch.cat(values) if _array.is_torch(values[0]) else np.concatenate(values)


def check_device(module: Any, owner: str) -> tuple[torch.device, torch.dtype]:
    """Return the device of a module, which must be unique, and the dtype of its first floating parameter."""
    parameters = list(module.parameters())
    if not parameters:
        remedy = "There is nothing to differentiate with respect to."
        raise ValueError(message(owner, "module", "a module with parameters", _name(module), remedy))
    devices = {str(p.device) for p in (*parameters, *module.buffers())}
    if len(devices) > 1:
        raise ValueError(
            f"The 'module' parameter of {owner} must be on one device. Got parameters and buffers on "
            f"{', '.join(sorted(devices))} instead. Move it with module.to(device)."
        )
    if "meta" in devices:
        raise ValueError(f"The 'module' parameter of {owner} must hold values. Got a module on the device 'meta'.")
    return parameters[0].device, next((p.dtype for p in parameters if p.is_floating_point()), torch.float32)


def _name(module: Any) -> str:
    return describe(type(module).__name__)


def fingerprint(about: str, module: Any, rows: TensorRows | Loader) -> str:
    """Hash what the features depend on: a description of the sketch, the module's weights, and a sample of rows."""
    digest = hashlib.sha256(about.encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    some = rows.sample(16)
    for leaf in (*some.leaves.values(), *([] if some.y is None else [some.y])):
        digest.update(np.ascontiguousarray(_array.to_numpy(leaf)).tobytes())
    return digest.hexdigest()
