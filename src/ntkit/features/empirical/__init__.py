"""Sketched gradients of a torch module as features. torch is imported on first use."""

from ntkit.features.empirical.maps import EmpiricalNTKFeatures
from ntkit.features.empirical.stores import FeatureShards

__all__ = ["EmpiricalNTKFeatures", "FeatureShards"]
