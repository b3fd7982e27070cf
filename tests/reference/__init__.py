"""Naive, readable versions of ntkit's fast computations, written from the definitions with plain loops."""
