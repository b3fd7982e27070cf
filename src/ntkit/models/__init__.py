"""Learners on features: ridge regression and classification in one pass or over many draws, k-means."""

from ntkit.models.gram import GramRidge, GramRidgeClassifier, gram_matrix
from ntkit.models.kmeans import FeatureKMeans
from ntkit.models.ridge import FeatureRidge, FeatureRidgeClassifier
from ntkit.models.search import FeatureRidgeSearch, FeatureRidgeSearchClassifier

__all__ = [
    "FeatureKMeans",
    "FeatureRidge",
    "FeatureRidgeClassifier",
    "FeatureRidgeSearch",
    "FeatureRidgeSearchClassifier",
    "GramRidge",
    "GramRidgeClassifier",
    "gram_matrix",
]
