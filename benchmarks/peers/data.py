"""Load the data sets of the comparison, some of which are not in ntkit.datasets but files in $NTKIT_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from experiment import UnavailableError, dataset
from ntkit.datasets import Dataset

GAUSSIAN_PROCESS_TABLES = ("airfoil", "concrete", "energy", "parkinsons", "pumadyn32nm", "keggdirected", "tamielectric")
TEXT_TABLES = ("adult", "german")


def load(name):
    """Load a data set from ntkit.datasets or from a file in $NTKIT_DATA; text columns are one-hot encoded."""
    if name in GAUSSIAN_PROCESS_TABLES:
        content = np.load(_file(f"gp_{name}.npz"))
        test = content["test_fold0"]
        X, y = content["X"], content["y"]
        return Dataset(name, X[~test], y[~test], "regression", "y", X[test], y[test])
    if name in TEXT_TABLES:
        return _load_text(name)
    return dataset(name)


def _load_text(name):
    import pandas as pd

    files = ("adult_train.csv.gz", "adult_test.csv.gz") if name == "adult" else (f"{name}.csv.gz",)
    frames = [pd.read_csv(_file(file), header=None, skipinitialspace=True) for file in files]
    rows = pd.concat(frames, ignore_index=True)
    labels = rows.iloc[:, -1].astype(str).str.rstrip(".")
    y = np.searchsorted(np.unique(labels), labels)
    X = pd.get_dummies(rows.iloc[:, :-1]).to_numpy(np.float32)
    n = len(frames[0])
    if len(frames) == 1:
        return Dataset(name, X, y, "classification", "class")
    return Dataset(name, X[:n], y[:n], "classification", "class", X[n:], y[n:])


def _file(name):
    folder = os.environ.get("NTKIT_DATA")
    path = Path(folder or ".") / name
    if folder is None or not path.exists():
        raise UnavailableError(f"there is no file {name} in the folder $NTKIT_DATA")
    return path
