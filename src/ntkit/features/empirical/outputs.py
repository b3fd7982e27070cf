"""Outputs to differentiate, one number per row of X, in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ntkit._validation import describe

IGNORED = -100  # target of positions to ignore, as in torch.nn.CrossEntropyLoss
REMEDY = "Pass a function (module, inputs, targets) → tensor of shape (n_rows,) as output."


def call(module: Any, inputs: Any) -> Any:
    """Call a module with a tensor, a tuple of tensors or a dict of tensors."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def evaluate(output: Any, module: Any, inputs: Any, targets: Any, n_rows: int, owner: str) -> Tensor:
    """Compute the values to differentiate: (n_rows,), or (n_rows, n_classes) for logits."""
    if callable(output):
        values = output(module, inputs, targets)
        if not isinstance(values, Tensor) or tuple(values.shape) != (n_rows,):
            raise ValueError(
                f"The 'output' parameter of {owner} must be a function that returns a tensor of shape (n_rows,), here "
                f"({n_rows},). Got {describe(values)} instead."
            )
        return values
    logits = _logits(call(module, inputs), owner)
    if len(logits) != n_rows:
        raise ValueError(
            f"The module of {owner} must return one output for each row of X, here {n_rows}. Got a tensor of shape "
            f"{tuple(logits.shape)} instead. {REMEDY}"
        )
    logits = logits.to(torch.float32) if logits.dtype.itemsize < 4 else logits
    if output in ("logits", "random_logits"):
        if logits.ndim > 2:
            raise ValueError(
                f"The module of {owner} must return outputs of shape (n_rows, n_classes) for output='{output}'. Got "
                f"{tuple(logits.shape)} instead. {REMEDY}"
            )
        return logits.reshape(n_rows, -1)
    return _margins(logits, targets, owner) if output == "margin" else -_losses(logits, targets, owner)


def _logits(out: Any, owner: str) -> Tensor:
    """Find the logits in the output of a module: the output itself, its `logits`, or its first item."""
    found = out
    if not isinstance(out, Tensor):
        if hasattr(out, "logits"):
            found = out.logits
        elif isinstance(out, Mapping):
            found = out.get("logits")
        elif isinstance(out, tuple | list) and out:
            found = out[0]
    if not isinstance(found, Tensor) or not found.is_floating_point() or not found.ndim:
        raise ValueError(
            f"The module of {owner} must return a floating-point tensor, or an object with 'logits'. Got "
            f"{describe(out)} instead. {REMEDY}"
        )
    return found


def _margins(logits: Tensor, targets: Any, owner: str) -> Tensor:
    """Compute Σ over positions of f_y − log Σ_{c ≠ y} exp f_c; for a single logit, the logit times the class sign."""
    if logits.ndim == 1 or (logits.ndim == 2 and logits.shape[1] == 1):
        logits = logits.reshape(-1)
        targets = (logits > 0) if targets is None else targets
        signs = 2 * (_labels(targets, logits[:, None], owner) > 0).to(logits.dtype) - 1
        return signs.reshape(-1) * logits
    targets = _last(logits, targets, owner).argmax(-1) if targets is None else targets
    logits = _last(logits, targets, owner)
    labels = _labels(targets, logits, owner)
    counted = labels != IGNORED
    places = torch.where(counted, labels, 0)[..., None]
    own = logits.gather(-1, places)[..., 0]
    others = logits.scatter(-1, places, -torch.inf).logsumexp(-1)
    return torch.where(counted, own - others, 0.0).reshape(len(logits), -1).sum(1)


def _losses(logits: Tensor, targets: Any, owner: str) -> Tensor:
    """Compute the log-likelihood up to a constant: minus the cross-entropy, or minus half the squared error."""
    if targets is None:
        raise ValueError(
            f"output='loss' of {owner} needs targets. Pass them as y, or as 'labels' of a dict of tensors."
        )
    if targets.is_floating_point():
        if tuple(targets.shape) != tuple(logits.shape) and targets.numel() != logits.numel():
            raise ValueError(
                f"Real targets of {owner} must have the shape of the outputs, {tuple(logits.shape)}. Got "
                f"{tuple(targets.shape)} instead."
            )
        error = logits - targets.reshape(logits.shape).to(logits.dtype)
        return -0.5 * (error**2).reshape(len(logits), -1).sum(1)
    if logits.ndim == 1 or (logits.ndim == 2 and logits.shape[1] == 1):
        values = logits.reshape(-1)
        signs = 2 * (_labels(targets, values[:, None], owner) > 0).to(values.dtype) - 1
        return functional.logsigmoid(signs.reshape(-1) * values)
    logits = _last(logits, targets, owner)
    labels = _labels(targets, logits, owner)
    counted = labels != IGNORED
    log_p = logits.log_softmax(-1).gather(-1, torch.where(counted, labels, 0)[..., None])[..., 0]
    return torch.where(counted, log_p, 0.0).reshape(len(logits), -1).sum(1)


def _last(logits: Tensor, targets: Any, owner: str) -> Tensor:
    """Move the classes to the last axis, from torch's (rows, classes, positions…) to (rows, positions…, classes)."""
    if logits.ndim == 2 or targets is None:
        return logits
    shape = tuple(targets.shape)
    if tuple(logits.shape[:-1]) == shape:
        return logits
    if (logits.shape[0], *logits.shape[2:]) == shape:
        return logits.movedim(1, -1)
    raise ValueError(
        f"Targets of {owner} must have one class for each position of outputs of shape {tuple(logits.shape)}. Got the "
        f"shape {shape} instead."
    )


def _labels(targets: Any, logits: Tensor, owner: str) -> Tensor:
    """Check targets and return them as int64 classes."""
    if targets.is_floating_point():
        raise TypeError(f"Targets of {owner} must be classes, given as integers. Got {describe(targets)} instead.")
    labels = targets.to(torch.int64)
    expected = tuple(logits.shape[:-1])
    if tuple(labels.shape) != expected:
        raise ValueError(f"Targets of {owner} must have the shape {expected}. Got {tuple(labels.shape)} instead.")
    if torch._C._functorch.is_functorch_wrapped_tensor(labels):  # vmap allows no data-dependent shapes
        return labels
    classes = labels[labels != IGNORED]
    n_classes = max(logits.shape[-1], 2)
    if len(classes) and not (int(classes.min()) >= 0 and int(classes.max()) < n_classes):
        raise ValueError(
            f"Targets of {owner} must be from 0 to {n_classes - 1}: the module has {n_classes} classes. Got values "
            f"from {int(classes.min())} to {int(classes.max())} instead."
        )
    return labels
