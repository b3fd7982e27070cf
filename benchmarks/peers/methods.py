"""The methods compared on tables: other libraries, and ntkit.

A method has a learner, an optional feature map, and a grid of hyper-parameters: `settings` (of the kernel) times
`alphas` (the penalty). A method with one setting and one alpha uses its defaults, or tunes itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline

from experiment import UnavailableError

N_COMPONENTS = 2048
TUNING_ROWS = 10_000  # LightGBM is tuned on at most this many training rows
EXACT_ROWS = 10_000  # methods that store an n × n matrix get at most this many training rows
ALPHAS = tuple(10.0**k for k in range(-4, 3))
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # γ as multiples of scikit-learn's "scale"
POLYNOMIALS = ((2, 0.3), (2, 1.0), (2, 3.0), (3, 0.3), (3, 1.0))  # degree, and γ as a multiple of "scale"


@dataclass(frozen=True)
class Problem:
    """What a method knows before it sees the rows."""

    classes: int  # 0 for regression
    seed: int
    scale: float  # 1/(d·Var(X)) of the training rows


@dataclass(frozen=True)
class Method:
    """A learning method with its hyper-parameter grid."""

    label: str
    about: str
    learner: Callable[[Problem, Any, float | None], Any]
    features: Callable[[Problem, Any], Any] | None = None
    settings: tuple = (None,)
    alphas: tuple = (None,)
    setting_name: str = ""
    exact: bool = False  # stores an n × n matrix, or (xRFM) is too slow for all rows
    ours: bool = False

    def model(self, problem, setting, alpha):
        learner = self.learner(problem, setting, alpha)
        return make_pipeline(self.features(problem, setting), learner) if self.features else learner

    def choose(self, problem, X, y, X_held, y_held):
        """Return the setting and alpha with the lowest held-out error; compute features once per setting."""
        if len(self.settings) * len(self.alphas) == 1:
            return self.settings[0], self.alphas[0]
        errors = {}
        for setting in self.settings:
            Z, Z_held = X, X_held
            if self.features:
                features = self.features(problem, setting).fit(X)
                Z, Z_held = features.transform(X), features.transform(X_held)
            for alpha in self.alphas:
                learner = self.learner(problem, setting, alpha).fit(Z, y)
                errors[setting, alpha] = error_of(problem, learner.predict(Z_held), y_held)
        return min(errors, key=errors.get)

    def chosen(self, setting, alpha, model):
        """Describe the chosen hyper-parameters."""
        parts = [] if setting is None else [f"{self.setting_name} {setting}"]
        alpha = getattr(model, "alpha_", alpha)
        parts += [] if alpha is None else [f"α {alpha:.2g}"]
        return ", ".join([*parts, *([model.best_name_] if hasattr(model, "best_name_") else [])])


def error_of(problem, predictions, y):
    """Return the mean squared error, or the misclassification rate in percent."""
    predictions = np.asarray(predictions).ravel()
    return float(100 * np.mean(predictions != y) if problem.classes else np.mean((predictions - y) ** 2))


# scikit-learn and other packages.


def linear(problem, _setting, _alpha):
    from sklearn.linear_model import RidgeClassifierCV, RidgeCV

    return (RidgeClassifierCV if problem.classes else RidgeCV)(10.0 ** np.arange(-4, 6))


def ridge(problem, _setting, alpha):
    from sklearn.linear_model import Ridge, RidgeClassifier

    return (RidgeClassifier if problem.classes else Ridge)(alpha)


def rbf_sampler(problem, factor):
    from sklearn.kernel_approximation import RBFSampler

    return RBFSampler(gamma=factor * problem.scale, n_components=N_COMPONENTS, random_state=problem.seed)


def nystroem(problem, factor):
    from sklearn.kernel_approximation import Nystroem

    return Nystroem(gamma=factor * problem.scale, n_components=N_COMPONENTS, random_state=problem.seed)


def count_sketch(problem, setting):
    from sklearn.kernel_approximation import PolynomialCountSketch

    degree, factor = setting
    return PolynomialCountSketch(
        gamma=factor * problem.scale, degree=degree, coef0=1, n_components=N_COMPONENTS, random_state=problem.seed
    )


class ExactRBF(BaseEstimator):
    """scikit-learn's KernelRidge in float64; for classification, one target column of −1 and 1 per class."""

    def __init__(self, gamma, alpha, classes):
        self.gamma = gamma
        self.alpha = alpha
        self.classes = classes

    def fit(self, X, y):
        from sklearn.kernel_ridge import KernelRidge

        targets = 2 * np.eye(self.classes)[y] - 1 if self.classes else y
        self.model_ = KernelRidge(alpha=self.alpha, kernel="rbf", gamma=self.gamma).fit(X.astype(np.float64), targets)
        return self

    def predict(self, X):
        values = self.model_.predict(X.astype(np.float64))
        return values.argmax(axis=1) if self.classes else values


def boosting(problem, _setting, _alpha):
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    law = HistGradientBoostingClassifier if problem.classes else HistGradientBoostingRegressor
    return law(random_state=problem.seed)


def light_gbm(problem, _setting, _alpha):
    try:
        import lightgbm
    except ImportError as error:
        raise UnavailableError("lightgbm is not installed") from error
    law = lightgbm.LGBMClassifier if problem.classes else lightgbm.LGBMRegressor
    return law(random_state=problem.seed, verbose=-1)


class TunedLightGBM(BaseEstimator):
    """LightGBM with the best of 20 random settings and the number of trees that is best on held-out rows."""

    def __init__(self, seed, classes):
        self.seed = seed
        self.classes = classes

    def fit(self, X, y):
        try:
            import lightgbm
        except ImportError as error:
            raise UnavailableError("lightgbm is not installed") from error
        law = lightgbm.LGBMClassifier if self.classes else lightgbm.LGBMRegressor
        rng, n = np.random.default_rng(self.seed), min(len(y), TUNING_ROWS)
        held, best, least = n // 5, None, np.inf
        for _ in range(20):
            params = {
                "learning_rate": 10 ** rng.uniform(-2, -0.7),
                "num_leaves": int(2 ** rng.uniform(3, 8)),
                "min_child_samples": int(2 ** rng.uniform(1, 6)),
                "subsample": rng.uniform(0.5, 1),
                "subsample_freq": 1,
                "colsample_bytree": rng.uniform(0.5, 1),
                "reg_lambda": 10 ** rng.uniform(-3, 1),
                "random_state": self.seed,
                "verbose": -1,
            }
            stop = lightgbm.early_stopping(50, verbose=False)
            model = law(n_estimators=2000, **params)
            model.fit(X[held:n], y[held:n], eval_set=[(X[:held], y[:held])], callbacks=[stop])
            found = model.predict(X[:held])
            error = np.mean(found != y[:held]) if self.classes else np.mean((found - y[:held]) ** 2)
            if error < least:
                best, least = law(n_estimators=max(model.best_iteration_ or 1, 1), **params), error
        self.model_ = best.fit(X, y)
        return self

    def predict(self, X):
        return self.model_.predict(X)


def cat_boost(problem, _setting, _alpha):
    try:
        import catboost
    except ImportError as error:
        raise UnavailableError("catboost is not installed") from error
    law = catboost.CatBoostClassifier if problem.classes else catboost.CatBoostRegressor
    return law(random_seed=problem.seed, verbose=0, allow_writing_files=False)


class RecursiveFeatureMachine(BaseEstimator):
    """xRFM with its defaults; it requires validation rows and gets a fifth of the training rows."""

    def __init__(self, seed, classes):
        self.seed = seed
        self.classes = classes

    def fit(self, X, y):
        try:
            from xrfm import xRFM
        except ImportError as error:
            raise UnavailableError("xrfm is not installed") from error
        n = len(y) // 5  # the rows are in random order
        y = y if self.classes else y.astype(np.float32)
        self.model_ = xRFM(random_state=self.seed, verbose=False, device="cpu")
        self.model_.fit(X[n:], y[n:], X[:n], y[:n])
        return self

    def predict(self, X):
        return self.model_.predict(X)


# ntkit.


def feature_ridge(problem, features=None):
    import ntkit

    law = ntkit.FeatureRidgeClassifier if problem.classes else ntkit.FeatureRidge
    return law(features, random_state=problem.seed)


def feature_ridge_ntk(problem, depth, _alpha):
    from ntkit import ArcsinhScaler, NTKFeatures

    features = NTKFeatures(depth=depth, n_components=N_COMPONENTS, bias="auto", random_state=problem.seed)
    return feature_ridge(problem, make_pipeline(ArcsinhScaler(), features))


def feature_ridge_gaussian(problem, factor, _alpha):
    from ntkit import GaussianFeatures

    lengthscale = (2 * factor * problem.scale) ** -0.5
    return feature_ridge(
        problem, GaussianFeatures(n_components=N_COMPONENTS, lengthscale=lengthscale, random_state=problem.seed)
    )


def feature_ridge_nystroem(problem, factor, _alpha):
    from ntkit import NystroemFeatures

    lengthscale = (2 * factor * problem.scale) ** -0.5
    features = NystroemFeatures(
        "gaussian", n_components=N_COMPONENTS, lengthscale=lengthscale, random_state=problem.seed
    )
    return feature_ridge(problem, features)


def search(problem, _setting, _alpha):
    import ntkit

    law = ntkit.FeatureRidgeSearchClassifier if problem.classes else ntkit.FeatureRidgeSearch
    return law(random_state=problem.seed)


def kernel_ridge_ntk(problem, depth, alpha):
    import ntkit

    law = ntkit.KernelRidgeClassifier if problem.classes else ntkit.KernelRidge
    return law("ntk", alphas=alpha, depth=depth, random_state=problem.seed)


_GRID = "tuned: γ from 6 values, α from 7"
_GAMMA = {"settings": FACTORS, "alphas": ALPHAS, "setting_name": "γ/scale"}

# In the order of measurement: the methods that the page needs most come first.
METHODS = {
    "linear": Method("RidgeCV, linear", "linear baseline; α from 10 values by leave-one-out error", linear),
    "default": Method(
        "FeatureRidge()",
        "default; chooses kernel, metric, size and α itself",
        lambda p, *_: feature_ridge(p),
        ours=True,
    ),
    "search": Method(
        "FeatureRidgeSearch",
        "chooses kernels, metrics, size, α and an average of models and boosted trees itself; at most about 60 s",
        search,
        ours=True,
    ),
    "boosting": Method("HistGradientBoosting", "scikit-learn's boosted trees, defaults", boosting),
    "lightgbm": Method("LightGBM", "boosted trees, defaults", light_gbm),
    "lightgbm_tuned": Method(
        "LightGBM, tuned", "best of 20 random settings", lambda p, *_: TunedLightGBM(p.seed, p.classes)
    ),
    "catboost": Method("CatBoost", "boosted trees, defaults", cat_boost),
    "rbf_sampler": Method("RBFSampler + Ridge", _GRID, ridge, rbf_sampler, **_GAMMA),
    "nystroem": Method("Nystroem + Ridge", _GRID, ridge, nystroem, **_GAMMA),
    "gaussian": Method(
        "FeatureRidge(GaussianFeatures)",
        "tuned: length scale from 6 values (the γ grid); chooses α itself",
        feature_ridge_gaussian,
        settings=FACTORS,
        setting_name="γ/scale",
        ours=True,
    ),
    "nystroem_ridge": Method(
        "FeatureRidge(NystroemFeatures)",
        "Gaussian kernel, landmarks by leverage scores; tuned: length scale from 6 values (the γ grid); chooses α "
        "itself; added after the other methods were measured",
        feature_ridge_nystroem,
        settings=FACTORS,
        setting_name="γ/scale",
        ours=True,
    ),
    "ntk_depth": Method(
        "FeatureRidge(NTKFeatures)",
        "tuned: depth from 3 values; chooses α itself",
        feature_ridge_ntk,
        settings=(1, 2, 3),
        setting_name="depth",
        ours=True,
    ),
    "kernel_ridge_ntk": Method(
        'KernelRidge("ntk")',
        "exact kernel; tuned: depth from 3 values, α from 7",
        kernel_ridge_ntk,
        settings=(1, 2, 3),
        alphas=ALPHAS,
        setting_name="depth",
        exact=True,
        ours=True,
    ),
    "kernel_ridge_rbf": Method(
        "scikit-learn KernelRidge(rbf)",
        f"exact kernel; {_GRID}",
        lambda p, factor, alpha: ExactRBF(factor * p.scale, alpha, p.classes),
        **_GAMMA,
        exact=True,
    ),
    "xrfm": Method(
        "xRFM",
        "exact kernel of learned features, defaults; a fifth of its rows serve as validation set",
        lambda p, *_: RecursiveFeatureMachine(p.seed, p.classes),
        exact=True,
    ),
    "count_sketch": Method(
        "PolynomialCountSketch + Ridge",
        "tuned: degree and γ from 5 pairs, α from 7 values",
        ridge,
        count_sketch,
        settings=POLYNOMIALS,
        alphas=ALPHAS,
        setting_name="degree, γ/scale",
    ),
}
