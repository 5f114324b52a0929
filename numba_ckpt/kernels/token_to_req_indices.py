"""The request of every token of a packed batch, from the places where the requests begin."""

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import check_array, check_int, check_writable, refuse
from numba_ckpt._jit import cuda, host_loop, kernel, strided
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.kernels._launch import launch_grid
from numba_ckpt.rules import global_index
from numba_ckpt.rules.batch_rows import NO_REQUEST

__all__ = ["token_to_req_indices"]


@host_loop
def _first_bad_start(query_start_loc, num_reqs, num_tokens):  # type: ignore[no-untyped-def]
    """First entry that is below the one before it, or beyond the tokens; -1 if there is none, and the first is 0."""
    before = 0
    for row in range(num_reqs + 1):
        start = query_start_loc[row]
        if start < before or start > num_tokens or (row == 0 and start > 0):
            return row
        before = start
    return -1


@host_loop
def _token_to_req_indices_host(query_start_loc, num_reqs, indices):  # type: ignore[no-untyped-def]
    for row in range(num_reqs):
        for token in range(query_start_loc[row], query_start_loc[row + 1]):
            indices[token] = row
    for token in range(query_start_loc[num_reqs], indices.size):
        indices[token] = NO_REQUEST


@kernel
def _token_to_req_indices_kernel(query_start_loc, num_reqs, indices):  # type: ignore[no-untyped-def]
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    stride = global_index(cuda.gridDim.x, cuda.blockDim.x, 0)
    for row in strided(cuda.blockIdx.y, num_reqs + 1, cuda.gridDim.y):
        begin = max(query_start_loc[row], 0)
        end = query_start_loc[row + 1] if row < num_reqs else indices.size
        for token in strided(begin + first, min(end, indices.size), stride):
            indices[token] = row if row < num_reqs else NO_REQUEST


def token_to_req_indices(query_start_loc: Array, num_reqs: int, max_query_len: int, out: Array) -> Array:
    """Write the request of every token.

    Parameters
    ----------
    query_start_loc : ndarray or cupy.ndarray
        int32 or int64 [>= N+1], where each request's tokens begin, 0 first; entry N is where padding begins.
    num_reqs : int
        N, requests of the batch.
    max_query_len : int
        Tokens of the longest one; sizes the launch, and nothing depends on its being exact.
    out : ndarray or cupy.ndarray
        int32 [T], overwritten: row of each token's request, `NO_REQUEST` for padding.

    Returns
    -------
    ndarray or cupy.ndarray
        `out`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or shapes, or arrays of different devices; on the host also starts that fall, or that end beyond
        `out`. Nothing is written then.

    Notes
    -----
    On a device: one launch on the current stream, no synchronisation.

    Examples
    --------
    >>> token_to_req_indices(np.array([0, 3, 4]), 2, 3, np.empty(6, np.int32)).tolist()
    [0, 0, 0, 1, -1, -1]
    """
    backend = backend_of(query_start_loc=query_start_loc, out=out)
    check_array("query_start_loc", query_start_loc, 1, "i")
    check_array("out", out, 1, "i")
    if out.dtype != np.int32:
        refuse("out", "int32", out.dtype, "allocate it with this dtype", ArgumentTypeError)
    check_writable("out", out)
    check_int("num_reqs", num_reqs, 0, query_start_loc.shape[0] - 1)
    check_int("max_query_len", max_query_len, 0)
    if isinstance(backend, DeviceBackend):
        shape = num_reqs + 1, max(max_query_len, 1)
        launch_grid(backend, _token_to_req_indices_kernel, shape, (query_start_loc, num_reqs, out))
        return out
    bad = int(_first_bad_start(query_start_loc, num_reqs, out.shape[0]))
    if bad >= 0:
        got = f"{query_start_loc[bad]} at entry {bad}"
        refuse("query_start_loc", f"ascending starts from 0 to at most {out.shape[0]}", got, "accumulate query lengths")
    _token_to_req_indices_host(query_start_loc, num_reqs, out)
    return out
