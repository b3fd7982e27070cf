"""Hostile trials: damaged files, bad input, killed processes, full disks, numerical extremes.

Every trial ends in a :class:`~tests.hostile.verdicts.Verdict`; a table of counts is printed at the end of a test run.
`make test` runs a sample, `make test-all` runs all trials; ``python -m pytest tests/hostile`` runs only these trials.
"""
