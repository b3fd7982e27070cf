"""Plots. matplotlib is imported on first use (``pip install ntkit[plot]``)."""

from ntkit.display._approximation import KernelApproximationDisplay
from ntkit.display._common import check_matplotlib as check_matplotlib
from ntkit.display._error_curve import ErrorCurveDisplay
from ntkit.display._functions import plot_relu_ntk
from ntkit.display._importances import ImportanceDisplay
from ntkit.display._ridge_path import RidgePathDisplay

__all__ = ["ErrorCurveDisplay", "ImportanceDisplay", "KernelApproximationDisplay", "RidgePathDisplay", "plot_relu_ntk"]
