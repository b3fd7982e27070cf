"""Estimators as JSON data and arrays, for files."""
