"""Fitted maps and models as torch modules, with buffers, gradients, ``torch.compile`` and ``torch.export``.

``import ntkit`` does not load it; use ``import ntkit.torch``.
"""

from ntkit.torch.modules import Features, Model

__all__ = ["Features", "Model"]
