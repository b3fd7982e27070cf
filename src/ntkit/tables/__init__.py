"""Reading of tables, encoding of their columns as numbers, and the choice between regression and classification."""

from ntkit.tables._columns import level_text as level_text
from ntkit.tables._numerals import is_numeral as is_numeral
from ntkit.tables._read import FRAME_ENDINGS as FRAME_ENDINGS
from ntkit.tables._read import PARQUET_ENDINGS as PARQUET_ENDINGS
from ntkit.tables._read import read_frames, read_table
from ntkit.tables._read import text_columns as text_columns
from ntkit.tables.encoder import TableEncoder, infer_task
from ntkit.tables.encoder import explain_task as explain_task

__all__ = ["TableEncoder", "infer_task", "read_frames", "read_table"]
