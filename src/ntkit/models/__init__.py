"""Learners on features: ridge regression and classification in one pass."""

from ntkit.models.ridge import FeatureRidge, FeatureRidgeClassifier
from ntkit.models.search import FeatureRidgeSearch, FeatureRidgeSearchClassifier

__all__ = ["FeatureRidge", "FeatureRidgeClassifier", "FeatureRidgeSearch", "FeatureRidgeSearchClassifier"]
