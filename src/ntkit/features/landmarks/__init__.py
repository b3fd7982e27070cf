"""Features from landmarks: rows of the data that stand for all."""

from ntkit.features.landmarks.nystroem import NystroemFeatures

__all__ = ["NystroemFeatures"]
