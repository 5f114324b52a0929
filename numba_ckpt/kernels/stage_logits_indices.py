"""Tokens that logits are wanted of, into a buffer at a fixed address whose rest repeats the last one."""

from typing import Any

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import INT32_MAX, check_array, refuse
from numba_ckpt._jit import cuda, host_loop, int64, kernel, strided
from numba_ckpt.kernels._launch import launch_grid
from numba_ckpt.rules import fits_int32, global_index

__all__ = ["stage_logits_indices"]


NO_TOKEN = -1


@host_loop
def _stage_logits_indices_host(logits_indices, buffer):  # type: ignore[no-untyped-def]
    last = logits_indices.size - 1
    for index in range(buffer.size):
        buffer[index] = logits_indices[min(index, last)]


@kernel
def _stage_logits_indices_kernel(logits_indices, buffer):  # type: ignore[no-untyped-def]
    last = logits_indices.size - 1
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    for index in strided(first, buffer.size, global_index(cuda.gridDim.x, cuda.blockDim.x, 0)):
        token = int64(logits_indices[min(index, last)])
        buffer[index] = token if fits_int32(token) else NO_TOKEN


def _check_logits_indices(logits_indices: Array, buffer: Array) -> None:
    """Refuse arrays of different devices; on the host also indices that are no tokens of a batch."""
    if not backend_of(logits_indices=logits_indices, buffer=buffer).is_host or not logits_indices.size:
        return
    low, high = int(logits_indices.min()), int(logits_indices.max())
    if not 0 <= low <= high <= INT32_MAX:
        got = low if low < 0 else high
        refuse("logits_indices", f"tokens of the batch, in [0, {INT32_MAX}]", got, "count them from 0")


def stage_logits_indices(logits_indices: Array, buffer: Array) -> None:
    """Copy indices to the start of `buffer` and repeat the last one in the rest, so that stale ones never remain.

    Parameters
    ----------
    logits_indices : ndarray or cupy.ndarray
        Integers [L], at least one and at most as many as `buffer` holds; any strides.
    buffer : ndarray or cupy.ndarray
        int32; overwritten whole.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or sizes, arrays of different devices; on the host also an index outside [0, 2^31).

    Notes
    -----
    On a device: one launch on the current stream, no synchronisation; an index beyond int32 becomes -1.

    Examples
    --------
    >>> import numpy as np
    >>> buffer = np.zeros(4, np.int32)
    >>> stage_logits_indices(np.array([3, 8]), buffer)
    >>> buffer.tolist()
    [3, 8, 8, 8]
    """
    backend: Any = backend_of(logits_indices=logits_indices, buffer=buffer)
    check_array("logits_indices", logits_indices, 1, "iu")
    check_array("buffer", buffer, 1, "i")
    if not 1 <= logits_indices.size <= buffer.size:
        refuse("logits_indices", f"1 to {buffer.size} entries", logits_indices.size, "enlarge the buffer")
    _check_logits_indices(logits_indices, buffer)
    if isinstance(backend, DeviceBackend):
        launch_grid(backend, _stage_logits_indices_kernel, (1, buffer.size), (logits_indices, buffer))
    else:
        _stage_logits_indices_host(logits_indices, buffer)
