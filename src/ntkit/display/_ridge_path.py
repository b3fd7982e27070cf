"""Plot held-out errors against the penalty of a ridge model."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from ntkit._validation import check_bool, check_real, message
from ntkit.display._common import axes_or_new, check_matplotlib, number_array


class RidgePathDisplay:
    """Plot of the held-out errors of a ridge model against its penalties α, with the chosen α.

    Create it with :meth:`from_estimator` or :meth:`from_values`. All parameters are stored as attributes.

    Parameters
    ----------
    alphas : ndarray of shape (n_alphas,)
        Strengths of the penalty.
    errors : ndarray of shape (n_alphas,)
        Error for each α; NaN for values that were not tried. They are not drawn.
    alpha : float, default=None
        The chosen α.
    degrees_of_freedom : ndarray of shape (n_alphas,), default=None
        Effective degrees of freedom for each α, drawn on a second axis.
    error_name : str, default="Error"
        Name of the errors, for the axis.
    name : str, default=None
        Name of the model, for the legend.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    line_ : matplotlib Line2D
        The errors.
    chosen_ : matplotlib Line2D or None
        Vertical line at the chosen α.
    degrees_ax_ : matplotlib Axes or None
        The second axis.
    degrees_line_ : matplotlib Line2D or None
        The degrees of freedom.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import FeatureRidge, NTKFeatures
    >>> from ntkit.display import RidgePathDisplay
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((500, 3))
    >>> y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(500)
    >>> model = FeatureRidge(NTKFeatures(n_components=256, random_state=0), random_state=0).fit(X, y)
    >>> display = RidgePathDisplay.from_estimator(model)
    >>> bool(display.errors.min() == model.errors_.min()), display.alpha == model.alpha_
    (True, True)
    """

    def __init__(
        self,
        *,
        alphas: Any,
        errors: Any,
        alpha: float | None = None,
        degrees_of_freedom: Any = None,
        error_name: str = "Error",
        name: str | None = None,
    ):
        self.alphas = alphas
        self.errors = errors
        self.alpha = alpha
        self.degrees_of_freedom = degrees_of_freedom
        self.error_name = error_name
        self.name = name

    def plot(self, ax: Any = None, *, name: str | None = None, **kwargs: Any) -> Self:
        """Draw the errors over α.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the model; None: the name of the display.
        **kwargs
            Passed to matplotlib's ``plot`` of the errors.

        Returns
        -------
        display : RidgePathDisplay
        """
        ax = axes_or_new(ax, f"{type(self).__name__}.plot")
        name = self.name if name is None else name
        tried = np.isfinite(self.errors)
        (self.line_,) = ax.plot(
            self.alphas[tried], self.errors[tried], **({"marker": "o", "label": name or "error"} | kwargs)
        )
        positive = self.alphas[self.alphas > 0]
        if len(positive) < len(self.alphas):  # α = 0 has no logarithm
            ax.set_xscale("symlog", linthresh=positive.min() if len(positive) else 1.0)
        else:
            ax.set_xscale("log")
        ax.set(xlabel="Penalty α", ylabel=self.error_name)
        self.chosen_ = self.degrees_ax_ = self.degrees_line_ = None
        handles = [self.line_]
        if self.alpha is not None:
            style = {"color": self.line_.get_color(), "linestyle": "--", "linewidth": 1}
            self.chosen_ = ax.axvline(self.alpha, label=f"α = {self.alpha:.3g}, chosen", **style)
            handles.append(self.chosen_)
        if self.degrees_of_freedom is not None:
            self.degrees_ax_ = ax.twinx()
            style = {"color": "grey", "linestyle": ":", "label": "degrees of freedom"}
            (self.degrees_line_,) = self.degrees_ax_.plot(self.alphas, self.degrees_of_freedom, **style)
            self.degrees_ax_.set(ylabel="Effective degrees of freedom", yscale="log")
            handles.append(self.degrees_line_)
        ax.legend(handles=handles)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        degrees_of_freedom: bool = False,
        ax: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the path of a fitted model.

        Parameters
        ----------
        estimator : FeatureRidge, GramRidge, KernelRidge, their classifiers, FeatureRidgeSearch or Pipeline
            A model fitted with several α. For a search, its best model is used; for a Pipeline, its last step.
        degrees_of_freedom : bool, default=False
            Whether to also draw the effective degrees of freedom tr G(G + αI)⁻¹, where G is the Gram matrix of the
            (centred) features. Only for FeatureRidge and FeatureRidgeClassifier. It needs the eigenvalues of G, O(m³)
            for m features, or O(n² m) for n < m rows.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the model; None: the name of its class.
        **kwargs
            Passed to matplotlib's ``plot`` of the errors.

        Returns
        -------
        display : RidgePathDisplay
        """
        owner = f"{cls.__name__}.from_estimator"
        check_matplotlib(owner)
        check_bool(degrees_of_freedom, "degrees_of_freedom", owner)
        model = estimator[-1] if isinstance(estimator, Pipeline) else estimator
        check_is_fitted(model)
        model = getattr(model, "best_estimator_", model)
        if not hasattr(model, "alphas_"):
            rule = "a ridge model of ntkit, with the attributes alphas_ and errors_"
            raise TypeError(message(owner, "estimator", rule, estimator, "Or use from_values."))
        errors = getattr(model, "errors_", None)
        if errors is None or len(errors) < 2 or not np.isfinite(errors).any():
            rule = "fitted with several α that are compared on held-out rows"
            remedy = "Set alphas to an array."
            raise ValueError(message(owner, "estimator", rule, estimator, remedy))
        log_loss = is_classifier(model)
        display = cls(
            alphas=np.asarray(model.alphas_),
            errors=np.asarray(errors),
            alpha=float(model.alpha_),
            degrees_of_freedom=_degrees_of_freedom(model, owner) if degrees_of_freedom else None,
            error_name=f"{'Log loss' if log_loss else 'Squared error'} on held-out rows",
            name=type(model).__name__ if name is None else name,
        )
        return display.plot(ax, **kwargs)

    @classmethod
    def from_values(
        cls,
        alphas: Any,
        errors: Any,
        *,
        alpha: float | None = None,
        degrees_of_freedom: Any = None,
        error_name: str = "Error",
        ax: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw given errors, for example of other models.

        Parameters
        ----------
        alphas : array of shape (n_alphas,)
            Strengths of the penalty, in any order.
        errors : array of shape (n_alphas,)
            Error for each α; NaN is not drawn.
        alpha : float, default=None
            The chosen α; None draws no line.
        degrees_of_freedom : array of shape (n_alphas,), default=None
            Effective degrees of freedom for each α.
        error_name : str, default="Error"
            Name of the errors, for the axis.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the model.
        **kwargs
            Passed to matplotlib's ``plot`` of the errors.

        Returns
        -------
        display : RidgePathDisplay
        """
        owner = f"{cls.__name__}.from_values"
        check_matplotlib(owner)
        rule = "a 1-D array of finite numbers ≥ 0"
        alphas = number_array(
            alphas, "alphas", owner, lambda a: a.ndim == 1 and np.isfinite(a).all() and a.min() >= 0, rule
        )
        shape = alphas.shape
        rule = f"an array of shape {shape}, like alphas, with at least one finite number"
        errors = number_array(errors, "errors", owner, lambda a: a.shape == shape and np.isfinite(a).any(), rule)
        order = np.argsort(alphas, kind="stable")
        if alpha is not None:
            alpha = check_real(alpha, "alpha", owner, minimum=0)
        if degrees_of_freedom is not None:
            rule = f"an array of finite numbers of shape {shape}, like alphas"
            degrees_of_freedom = number_array(
                degrees_of_freedom, "degrees_of_freedom", owner,
                lambda a: a.shape == shape and np.isfinite(a).all(), rule,
            )[order]  # fmt: skip
        display = cls(
            alphas=alphas[order],
            errors=errors[order],
            alpha=alpha,
            degrees_of_freedom=degrees_of_freedom,
            error_name=error_name,
            name=name,
        )
        return display.plot(ax, **kwargs)


def _degrees_of_freedom(model: Any, owner: str) -> np.ndarray:
    """Compute Σ μ/(μ + α) over the eigenvalues μ of the Gram matrix of features, for each α."""
    if not hasattr(model, "degrees_of_freedom"):
        rule = "False for a model other than FeatureRidge or FeatureRidgeClassifier"
        raise ValueError(message(owner, "degrees_of_freedom", rule, True))
    return model.degrees_of_freedom(model.alphas_)
