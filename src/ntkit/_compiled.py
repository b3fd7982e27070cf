"""Functions compiled by numba, with a cache on disk that is invalidated by every source change.

numba's own cache checks only the file that defines a function, so a change in an imported file would go unnoticed.
Here the cache key also holds a digest of all files of the package that this file imports, directly or indirectly.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache

from ntkit._progress import report

_ROOT = Path(__file__).parent


class _SourceCache(FunctionCache):
    """numba's cache of one function, with a digest of the sources in the key."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), source_digest(Path(self._py_func.__code__.co_filename)))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the cached code for a signature; if there is none, report that numba is about to compile."""
        found = super().load_overload(sig, target_context)
        if found is None:
            report("compile")
        return found


def source_digest(path: Path) -> str:
    """Return a digest of a file and all files of the package that it imports, directly or indirectly."""
    found: set[Path] = set()
    stack = [path]
    while stack:
        file = stack.pop()
        if file not in found:
            found.add(file)
            stack += _imports(file)
    digests = (hashlib.sha256(file.read_bytes()).digest() for file in sorted(found))
    return hashlib.sha256(b"".join(digests)).hexdigest()


@lru_cache(maxsize=256)
def _imports(path: Path) -> tuple[Path, ...]:
    """Return the files of the package that a file imports."""

    def candidates() -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    parts = [name.split(".")[1:] for name in candidates() if name.startswith("ntkit.")]
    files = [_ROOT.joinpath(*names) for names in parts]
    both = [*(file.with_suffix(".py") for file in files), *(file / "__init__.py" for file in files)]
    return tuple(file for file in both if file.exists())


def compiled(function: Callable[..., Any] | None = None, *, fastmath: Collection[str] = ("contract",)) -> Any:
    """Compile a function with numba: no GIL, IEEE division, cached on disk.

    `fastmath` lists LLVM's fast-math flags. By default the compiler may only contract a product and a sum to one
    instruction.
    """
    if function is None:
        return partial(compiled, fastmath=fastmath)
    dispatcher = numba.njit(nogil=True, error_model="numpy", fastmath=set(fastmath))(function)
    if dispatcher is not function:  # with NUMBA_DISABLE_JIT, njit returns the function itself
        dispatcher._cache = _SourceCache(function)
    return dispatcher
