"""Features from landmarks: a few rows that represent all rows."""

from ntkit.features.landmarks.nystroem import NystroemFeatures

__all__ = ["NystroemFeatures"]
