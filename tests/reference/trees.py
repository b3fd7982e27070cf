"""Sums of boosted trees, one row and one node at a time."""

from __future__ import annotations

import numpy as np


def tree_sums(model, X):
    """Sum the values of the leaves that each row reaches."""
    out = np.tile(model.baseline_, (len(X), 1))
    for i, row in enumerate(np.asarray(X, dtype=np.float64)):
        for root, output in zip(model.root_, model.output_, strict=True):
            node = root
            while model.left_[node] != node:
                node = (model.left_ if row[model.column_[node]] <= model.threshold_[node] else model.right_)[node]
            out[i, output] += model.value_[node]
    return out


def leaf_indicators(model, X):
    """For each leaf of all trees, in the order of the nodes: whether each row reaches it."""
    leaves = [node for node in range(len(model.left_)) if model.left_[node] == node]
    out = np.zeros((len(X), len(leaves)))
    for i, row in enumerate(np.asarray(X, dtype=np.float64)):
        for node in model.root_:
            while model.left_[node] != node:
                node = (model.left_ if row[model.column_[node]] <= model.threshold_[node] else model.right_)[node]
            out[i, leaves.index(node)] = 1
    return out
