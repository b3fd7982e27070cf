"""Learners: ridge regression and classification and k-means on features; kernel ridge regression."""

from ntkit.models.gram import GramRidge, GramRidgeClassifier, gram_matrix
from ntkit.models.kernel_ridge import KernelRidge, KernelRidgeClassifier
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
    "KernelRidge",
    "KernelRidgeClassifier",
    "gram_matrix",
]
