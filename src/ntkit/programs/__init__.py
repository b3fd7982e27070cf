"""Straight-line programs on rows: one description of a map, run by several back ends.

A map appends its steps to a :class:`Program`. :func:`run` chooses a back end: :mod:`ntkit.programs.array_api` (the
readable reference, for any array library and for gradients), :mod:`ntkit.programs.host` (compiled, for host memory) or
:mod:`ntkit.programs.cuda` (Triton). Compositions and trees of maps become one program, which fuses them without extra
code.
"""

from ntkit.programs import array_api, steps
from ntkit.programs.analysis import peak_live
from ntkit.programs.passes import transpose
from ntkit.programs.program import Program
from ntkit.programs.runner import run
from ntkit.programs.steps import Floats, power_of_two

__all__ = ["Floats", "Program", "array_api", "peak_live", "power_of_two", "run", "steps", "transpose"]
