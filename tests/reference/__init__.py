"""Naive, legible versions of what ntkit computes fast: written from the definitions, loops and all."""
