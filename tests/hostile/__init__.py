"""Hostile trials: damaged files, bad input, killed processes, full disks, numerical extremes.

Every trial ends in a :class:`~tests.hostile.verdicts.Verdict`; the table of counts stands at the end of a test run.
`make test` runs a sample, `make test-all` all of it; ``python -m pytest tests/hostile`` runs it alone.
"""
