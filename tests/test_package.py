"""The package as a whole: light import, public names, version."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import ntkit

HEAVY = ("numba", "torch", "dask", "distributed", "matplotlib", "sklearn", "scipy", "pandas")


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(out.stdout.splitlines()[-1]))


def test_import_loads_no_heavy_packages():
    assert not loaded_after("import ntkit").intersection(HEAVY)


def test_describing_networks_kernels_and_sketches_loads_neither_numba_nor_torch():
    modules = loaded_after("import ntkit; ntkit.networks.myrtle(5); ntkit.kernels.gaussian; ntkit.sketches.SRHT(3, 2)")
    assert not modules.intersection(("numba", "torch", "dask", "matplotlib"))


def test_numpy_arrays_do_not_load_torch():
    code = """
from ntkit import FeatureRidge, NTKFeatures, PolynomialSketch, kernels
kernels.ntk([[1.0]], depth=1)
PolynomialSketch(n_components=3).fit_transform([[1.0]])
FeatureRidge(NTKFeatures(n_components=8)).fit([[1.0], [2.0], [3.0]], [1.0, 2.0, 3.0]).predict([[1.0]])
"""
    modules = loaded_after(code)
    assert "numba" in modules
    assert not modules.intersection(("torch", "dask", "matplotlib"))


NAMES = (
    "attribution", "datasets", "diagnostics", "display", "distributed", "features", "kernels", "models", "networks",
    "persistence", "preprocessing", "sketches", "tables",
)  # fmt: skip
MODULES = [f"ntkit.{name}" for name in NAMES]
WITHOUT_EXAMPLE = {"Layer", "Activation", "FileError"}


@pytest.mark.parametrize("module", ["ntkit", *MODULES])
def test_every_public_name_exists_and_is_documented(module):
    """Every name has a docstring with an example, every public method a docstring."""
    namespace = import_module(module)
    assert len(set(namespace.__all__)) == len(namespace.__all__) > 0
    lacking = []
    for name in namespace.__all__:
        value = getattr(namespace, name)
        assert name in dir(namespace)
        example = "" if module == "ntkit" or name in WITHOUT_EXAMPLE else ">>>"
        if callable(value) and (not value.__doc__ or example not in value.__doc__):
            lacking.append(name)
        members = vars(value).items() if isinstance(value, type) else ()
        lacking += [f"{name}.{k}" for k, m in members if not k.startswith("_") and callable(m) and not m.__doc__]
    assert not lacking


def test_features_and_models_are_names_of_the_package():
    names = {*import_module("ntkit.features").__all__, *import_module("ntkit.models").__all__}
    assert names < set(ntkit.__all__)
    assert set(ntkit._NAMES) == set(ntkit.__all__) - {*ntkit._SUBMODULES, "__version__"}


def test_public_names_know_where_they_come_from():
    """Of features and models: pickles and files name these modules."""
    for name in (name for module in ("features", "models") for name in import_module(f"ntkit.{module}").__all__):
        value = getattr(ntkit, name)
        assert getattr(import_module(value.__module__), name) is value
        assert not any(part.startswith("_") for part in value.__module__.split("."))


def test_unknown_name_raises():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ntkit.nothing  # noqa: B018


def test_version_matches_the_metadata():
    assert ntkit.__version__ == version("ntkit")


def test_documents_name_the_version():
    root = Path(__file__).parents[1]
    release = ntkit.__version__.partition(".dev")[0]
    assert f"\nversion: {release}\n" in (root / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {release}\n" in (root / "CHANGELOG.md").read_text(encoding="utf-8")
