"""Where each request's logits begin among all logits, from where its tokens begin."""

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import check_array, refuse
from numba_ckpt._jit import cuda, host_loop, kernel, strided
from numba_ckpt.kernels._launch import launch_grid
from numba_ckpt.rules import global_index

__all__ = ["logits_start_loc"]


@host_loop
def _logits_start_loc_host(query_start_loc, logits_indices, starts):  # type: ignore[no-untyped-def]
    index = 0
    for row in range(query_start_loc.size):
        while index < logits_indices.size and logits_indices[index] < query_start_loc[row]:
            index += 1
        starts[row] = index


@kernel
def _logits_start_loc_kernel(query_start_loc, logits_indices, starts):  # type: ignore[no-untyped-def]
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    for row in strided(first, query_start_loc.size, global_index(cuda.gridDim.x, cuda.blockDim.x, 0)):
        low, high = 0, logits_indices.size
        while low < high:
            middle = (low + high) // 2
            if logits_indices[middle] < query_start_loc[row]:
                low = middle + 1
            else:
                high = middle
        starts[row] = low


def logits_start_loc(query_start_loc: Array, logits_indices: Array) -> Array:
    """Count the logits before each request's first token.

    Parameters
    ----------
    query_start_loc : ndarray or cupy.ndarray
        Integers [N + 1], where each request's tokens begin.
    logits_indices : ndarray or cupy.ndarray
        Integers [L], rising: token of each logit.

    Returns
    -------
    ndarray or cupy.ndarray
        [N + 1] of the dtype of `query_start_loc`: `query_start_loc` of a batch of the logits' tokens alone.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or shapes, or arrays of different devices.

    Notes
    -----
    On a device: one launch on the current stream, no synchronisation.

    Examples
    --------
    >>> import numpy as np
    >>> logits_start_loc(np.array([0, 15, 20, 28]), np.array([14, 18, 19, 27])).tolist()
    [0, 1, 3, 4]
    """
    backend = backend_of(query_start_loc=query_start_loc, logits_indices=logits_indices)
    check_array("query_start_loc", query_start_loc, 1, "i")
    check_array("logits_indices", logits_indices, 1, "i")
    if not query_start_loc.size:
        refuse("query_start_loc", "N + 1 entries", 0, "begin it with 0")
    starts = backend.empty(query_start_loc.shape, query_start_loc.dtype)
    if isinstance(backend, DeviceBackend):
        arguments = query_start_loc, logits_indices, starts
        launch_grid(backend, _logits_start_loc_kernel, (1, query_start_loc.size), arguments)
    else:
        _logits_start_loc_host(query_start_loc, logits_indices, starts)
    return starts
