"""Compile kernels to machine code with numba, cached on disk under a key that covers all of their sources.

numba keys its disk cache by the file of the compiled function alone. A kernel that calls a loss in another file would
return old answers after an edit of the loss. So the name of a cached function contains the digest of every source
file of `maths`. The key of code for a loss from elsewhere (another package, a script) contains the digest of that loss.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core import cgutils, types
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic, overload, register_jitable

from rhfedmtl.maths import losses
from rhfedmtl.registry import sources

try:
    import fcntl
except ImportError:  # Windows has no fcntl: processes that start together compile the same code in parallel
    fcntl = None  # type: ignore[assignment]

F = TypeVar("F", bound=Callable[..., Any])
CACHE_LINE = 64
# Additions may be reordered into vector lanes; nothing else changes a result.
_VECTOR_LANES = {"reassoc", "contract", "nsz"}
# Parts are called by kernels alone: ways in for Python and C would take a sixth of the time to compile.
_PART = {"error_model": "numpy", "forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# The types that numba declares leave out some of what its functions take.
_njit: Any = numba.njit
_register: Any = register_jitable
_overload: Any = overload
_tools: Any = cgutils
_cache: Any = FunctionCache
_library: Any = JITCodeLibrary
_compiler: Any = Compiler


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


_PACKAGE = __name__.partition(".")[0]
_SOURCES = _digest(sorted(Path(__file__).parents[1].rglob("*.py")))


@cache
def _digest_of_package(module: str) -> str:
    """Return the digest of a module's package; without files (a notebook), a random word that never repeats."""
    files = sources(module)
    return _digest(files) if files else secrets.token_hex(6)


def _classes(kinds: Iterable[Any]) -> Iterator[type]:
    """Yield the classes of NamedTuples among types of numba, including nested types."""
    for kind in kinds:
        if isinstance(kind, types.NamedTuple):
            yield kind.instance_class
            yield from _classes(kind.types)


class _Cache(_cache):  # type: ignore[misc]
    """numba's cache with keys in plain text: an index that contains a class cannot be read without its package."""

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        _, machine, code = super()._index_key(signature, codegen)
        modules = {kind.__module__ for kind in _classes(signature)}
        elsewhere = sorted(module for module in modules if module.partition(".")[0] != _PACKAGE)
        return str(signature), machine, code, *((module, _digest_of_package(module)) for module in elsewhere)

    def save_overload(self, signature: Any, data: Any) -> None:
        """Save an entry under a lock: two processes that update the index at the same time would lose an entry."""
        with _locked(Path(self.cache_path) / "index.lock"):
            super().save_overload(signature, data)


def compiled(function: F) -> F:
    """Compile a function that runs without the interpreter lock, so threads can share the terminals.

    The function neither allocates nor slices arrays: the caller makes all buffers before. numba checks this (no memory
    manager), and it saves reference counts, which at small rows cost more than the rows.
    """
    function.__qualname__ = f"{function.__qualname__}_{_SOURCES}"
    kernel = _njit(nogil=True, error_model="numpy", _nrt=False, no_cfunc_wrapper=True)(function)
    kernel._cache = _Cache(function)
    kernel.compile = _by_one_process(kernel)
    return cast(F, kernel)


def _by_one_process(kernel: Any) -> Callable[[Any], Any]:
    """Return a ``compile`` under a lock for each kind of arguments: a later process finds the result in the cache."""
    compile_here = kernel.compile

    def compile_once(signature: Any) -> Any:
        with _locked(Path(kernel._cache.cache_path) / f"{kernel.__name__}.lock", _place(signature)):
            return compile_here(signature)

    return compile_once


def _place(signature: Any) -> int:
    """Return the byte of the lock file for a signature: processes can compile different signatures at the same time."""
    return int.from_bytes(hashlib.sha256(str(signature).encode()).digest()[:4], "big")


@contextmanager
def _locked(path: Path, place: int = 0) -> Iterator[None]:
    """Lock a byte of a file against all other processes of this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        if fcntl is not None:  # unlike flock, forked processes do not inherit the lock
            fcntl.lockf(lock, fcntl.LOCK_EX, 1, place)
        yield


class _PartLibrary(_library):  # type: ignore[misc]
    """Code that kernels inline and optimise: no optimisation and no machine code here."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


def _name(library: Any, descriptor: Any, environment: Any) -> Any:
    """Return the function by which kernels find a part; it has no machine code."""
    library.finalize()
    return _dynfunc.make_function(descriptor.lookup_module(), descriptor.qualname, "", 0, environment, (library,))


class _PartCompiler(_compiler):  # type: ignore[misc]
    """numba's compiler without the stages that a part does not need, which saves a quarter of the compile time."""

    def __init__(self, typing: Any, target: Any, *arguments: Any) -> None:
        super().__init__(typing, target, *arguments)
        self.state.library = _PartLibrary(target.codegen(), "part")
        self.state.targetctx = self.state.targetctx.subtarget(get_executable=_name)


def compiled_sum(function: F) -> F:
    """Compile a part of kernels like `inlined`; additions may be reordered into vector lanes.

    It serves inner loops over features. The machine code fixes the order on each kind of CPU, for any number of
    threads.
    """
    return cast(F, _njit(nogil=True, fastmath=_VECTOR_LANES, **_PART)(function))


def inlined(function: F) -> F:
    """Register a part of kernels that is also a function of Python; its machine code is inlined at each call."""
    return cast(F, _register(pipeline_class=_PartCompiler, **_PART)(function))


def _make_fetch(typing_context: Any, array: Any, offset: Any) -> Any:
    """Request the cache line of a place in an array, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        address = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address, number, number, number])
        prefetch = _tools.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        place = builder.bitcast(builder.gep(data, [arguments[1]]), address)
        to_read, to_keep, data_cache = number(0), number(3), number(1)
        builder.call(prefetch, [place, to_read, to_keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


_fetch: Any = intrinsic(_make_fetch)


@inlined
def fetch_row(X: Any, i: Any) -> None:
    """Request row i of a contiguous matrix, which loads while other rows are processed."""
    for j in range(0, X.shape[1], CACHE_LINE // X.itemsize):
        _fetch(X, i * X.shape[1] + j)


# Inside kernels, the functions of a loss stand for the methods of its class.

inlined(losses.largest_step)


def _in_kernels(function: Callable[..., Any]) -> Callable[[F], F]:
    return cast(Callable[[F], F], _overload(function, jit_options={"pipeline_class": _PartCompiler}, strict=False))


@_in_kernels(losses.value)
def _value(loss: Any, z: Any, y: Any) -> Any:
    return loss.instance_class.value


@_in_kernels(losses.slope)
def _slope(loss: Any, z: Any, y: Any) -> Any:
    return loss.instance_class.slope


@_in_kernels(losses.conjugate)
def _conjugate(loss: Any, a: Any, y: Any) -> Any:
    return loss.instance_class.conjugate


@_in_kernels(losses.dual_step)
def _dual_step(loss: Any, a: Any, y: Any, z: Any, q: Any) -> Any:
    return loss.instance_class.dual_step


@_in_kernels(losses.line)
def _line(loss: Any, a: Any, y: Any, d: Any) -> Any:
    return loss.instance_class.line


@_in_kernels(losses.is_quadratic)
def _is_quadratic(loss: Any) -> Any:
    quadratic = loss.instance_class().quadratic
    return lambda loss: quadratic


@_in_kernels(losses.has_corners)
def _has_corners(loss: Any) -> Any:
    corners = losses.has_corners(loss.instance_class())
    return lambda loss: corners
