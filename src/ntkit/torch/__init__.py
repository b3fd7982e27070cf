"""Fitted maps and models as torch modules: buffers, gradients, ``torch.compile`` and ``torch.export``.

Import it on request: ``import ntkit.torch``.
"""

from ntkit.torch.modules import Features, Model

__all__ = ["Features", "Model"]
