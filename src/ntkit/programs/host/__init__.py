"""Programs on rows in host memory: compiled loops over W rows at a time, BLAS and FFT on tiles in between."""

from ntkit.programs.host.lanes import lanes
from ntkit.programs.host.stages import Plan, Workspace, plan, run

__all__ = ["Plan", "Workspace", "lanes", "plan", "run"]
