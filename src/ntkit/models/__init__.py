"""Learners on features: ridge regression and classification in one pass, or from a Gram matrix over many draws."""

from ntkit.models.gram import GramRidge, GramRidgeClassifier, gram_matrix
from ntkit.models.ridge import FeatureRidge, FeatureRidgeClassifier
from ntkit.models.search import FeatureRidgeSearch, FeatureRidgeSearchClassifier

__all__ = [
    "FeatureRidge",
    "FeatureRidgeClassifier",
    "FeatureRidgeSearch",
    "FeatureRidgeSearchClassifier",
    "GramRidge",
    "GramRidgeClassifier",
    "gram_matrix",
]
