"""Low-bit matrix products on numpy arrays.

Arrays are read where they lie: float32, C-contiguous, of numpy or lent through DLPack (torch tensors on the processor).
Anything else is a TypeError or ValueError that says how to convert it. Layers are strict: without a kernel they are a
NoKernelError with the reasons, and nothing else runs instead. No environment variable is read
but GRISTMILL_QUARANTINE, the folder of kernels that a program ended in before.
"""

import os
from typing import Any, Optional, Protocol, Union, final

import numpy
from numpy.typing import NDArray

__all__ = [
    "DataError",
    "Error",
    "FileError",
    "Guard",
    "Linear",
    "Model",
    "NoKernelError",
    "ShapeError",
    "Threads",
    "__version__",
    "decide",
    "dequantize",
    "explain",
    "formats",
    "kernels",
    "quantize",
    "tensor_bytes",
]
__version__: str

class _Lends(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

_Floats = Union[NDArray[numpy.float32], _Lends]
_Bytes = Union[bytes, bytearray, memoryview, NDArray[numpy.uint8]]

class Error(Exception):
    """An error of gristmill."""

class NoKernelError(Error):
    """No kernel of this build does it here; the message has the reasons."""

class ShapeError(Error):
    """Lengths and shapes contradict each other, or a shape is impossible."""

class DataError(Error):
    """The values are the error: not finite, too large for the format, or codes that mean nothing."""

class FileError(Error):
    """A file can't be read, or what stands in it is wrong."""

def formats() -> list[dict[str, Any]]:
    """Formats of this build: name, elements and bytes of a block, quantizers (the first is the default) and more."""

def kernels(format: Optional[str] = None) -> list[dict[str, Any]]:
    """Kernels of this build, or those of a format: name, op, format, isa, runs_here, shape and more."""

def explain(
    op: str, format: str, n: int, k: int, *, m: int = 1, input: str = "f32", device: str = "cpu"
) -> str:
    """Which kernel serves `m` tokens and `n` rows of `k` weights, and why not the others, as text for people.

    `op` is the name of an op ("matmul"; a wrong one is answered with all of them); `input` the type of what is not packed."""

def decide(
    op: str, format: str, n: int, k: int, *, m: int = 1, input: str = "f32", device: str = "cpu"
) -> dict[str, Any]:
    """The same as an object: chosen (None where there is none), plan, memory, and rejected with kernel, reason and help."""

def tensor_bytes(format: str, n: int, k: int) -> int:
    """Bytes of `n` rows of `k` weights in a format."""

def quantize(
    format: str, values: _Floats, *, quantizer: Optional[str] = None, threads: Optional[Threads] = None
) -> NDArray[numpy.uint8]:
    """The bytes of a matrix [n, k] in a format: the same for any number of threads."""

def dequantize(
    format: str,
    n: int,
    k: int,
    blocks: _Bytes,
    *,
    first_row: int = 0,
    rows: Optional[int] = None,
    threads: Optional[Threads] = None,
) -> NDArray[numpy.float32]:
    """The values of a matrix, or of some of its rows: the same for any number of threads."""

@final
class Threads:
    """Threads that products are divided among, the calling one included. A child of os.fork() works alone with them."""

    def __new__(cls, count: int) -> Threads: ...
    @property
    def count(self) -> int: ...

@final
class Guard:
    """How layers go on where a kernel or their device fails: one for all layers of a program.

    One run of `check_every` is compared with the portable kernel, in one output. Where a device fails its layers move to the
    processor if `to_processor`, and one run of `return_every` tries the device again; without it the errors of a device for which
    no other step helps are the caller's. 0 is never. Each step is in the receipt. GRISTMILL_QUARANTINE names a folder that keeps
    the kernels in quarantine. A child of os.fork() makes its guarded layers anew: a step of another thread may have been half done."""

    def __new__(cls, *, check_every: int = 0, to_processor: bool = False, return_every: int = 0) -> Guard: ...
    def forbid(self, kernel: str, why: str) -> bool:
        """Puts a kernel into quarantine, from the next run of each layer on; whether it was not there before."""

    @property
    def quarantined(self) -> list[dict[str, Any]]:
        """The kernels in quarantine: id, kernel (None where its name is not known) and why."""

@final
class Linear:
    """A layer: y = x w^T + bias with quantized weights `w`, `n` rows of `k`. The bytes are packed and not needed afterwards,
    but with a `guard`, which keeps a copy of them.

    Without `threads` the calling thread works alone. May be called by several threads at a time."""

    def __new__(
        cls,
        format: str,
        n: int,
        k: int,
        blocks: _Bytes,
        *,
        threads: Optional[Threads] = None,
        device: str = "cpu",
        guard: Optional[Guard] = None,
    ) -> Linear: ...
    def __call__(
        self,
        x: _Floats,
        *,
        bias: Optional[_Floats] = None,
        out: Optional[NDArray[numpy.float32]] = None,
    ) -> NDArray[numpy.float32]:
        """Rows of `n` outputs for rows of `k` inputs: [..., k] to [..., n]. The GIL is released meanwhile; nobody may write
        to the arrays. `out` must not share memory with the inputs."""

    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def weight_bytes(self) -> int:
        """Bytes held for the weights, packed."""

    @property
    def kept_bytes(self) -> int:
        """Bytes that a guard keeps besides; 0 without one."""

    @property
    def receipt(self) -> dict[str, Any]:
        """Which kernels ran since the layer was made: kernels with id, name and launches; and what was done, if one failed:
        recoveries."""

@final
class Model:
    """A GGUF file. Layers that were made of it stay when it is closed."""

    def __new__(cls, path: Union[str, os.PathLike[str]]) -> Model: ...
    def plan(self, *, m: int = 1, device: str = "cpu") -> list[dict[str, Any]]:
        """A decision for each tensor before anything is loaded: tensor, type, dims, quantized, kernel, reason."""

    def linear(
        self,
        name: str,
        *,
        threads: Optional[Threads] = None,
        device: str = "cpu",
        guard: Optional[Guard] = None,
    ) -> Linear:
        """The layer of a quantized matrix."""
