"""Programs on rows in host memory: compiled loops over W rows at a time, with BLAS and FFT calls on tiles of rows."""

from ntkit.programs.host.lanes import lanes
from ntkit.programs.host.stages import Plan, Workspace, plan, run

__all__ = ["Plan", "Workspace", "lanes", "plan", "run"]
