"""Tables to numbers: reading files, encoding columns, telling regression from classification."""

from ntkit.tables._read import read_table
from ntkit.tables.encoder import TableEncoder, infer_task

__all__ = ["TableEncoder", "infer_task", "read_table"]
