"""The commands behind :mod:`ntkit.cli`: what they do, how they print it, the page that compares maps."""
