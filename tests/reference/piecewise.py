"""Piecewise linear encoding, value by value."""

from __future__ import annotations

import itertools


def ramps(x, knots):
    """For a row x and lists of knots of its columns: how much of each interval lies below the value."""
    values = []
    for value, ends in zip(x, knots, strict=True):
        for start, end in itertools.pairwise(ends):
            if value <= start:
                values.append(0.0)
            elif value >= end:
                values.append(1.0)
            else:
                values.append((value - start) / (end - start))
    return values
