"""Learners: ridge regression, classification and k-means on features; kernel ridge regression; learned metrics."""

from ntkit.models.adaptive import AdaptiveFeatures
from ntkit.models.gram import GramRidge, GramRidgeClassifier, gram_matrix
from ntkit.models.kernel_ridge import KernelRidge, KernelRidgeClassifier
from ntkit.models.kmeans import FeatureKMeans
from ntkit.models.metric import LearnedMetric
from ntkit.models.ridge import FeatureRidge, FeatureRidgeClassifier
from ntkit.models.search import FeatureRidgeSearch, FeatureRidgeSearchClassifier
from ntkit.models.table import TableClassifier, TableRegressor

__all__ = [
    "AdaptiveFeatures",
    "FeatureKMeans",
    "FeatureRidge",
    "FeatureRidgeClassifier",
    "FeatureRidgeSearch",
    "FeatureRidgeSearchClassifier",
    "GramRidge",
    "GramRidgeClassifier",
    "KernelRidge",
    "KernelRidgeClassifier",
    "LearnedMetric",
    "TableClassifier",
    "TableRegressor",
    "gram_matrix",
]
