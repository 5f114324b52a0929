"""Block ids of the checkpoints of a batch, from the block table; rows without a checkpoint are not looked up."""

from typing import Any

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import check_array, check_shape, refuse
from numba_ckpt._jit import cuda, host_loop, int64, kernel, rule, strided
from numba_ckpt.kernels._launch import launch_grid
from numba_ckpt.rules import NULL_BLOCK_ID, global_index, is_inside

__all__ = ["gather_state_indices"]


@rule
def _fits_int32(block):  # type: ignore[no-untyped-def]
    # Negative ids are padding of the engine's tables, which exporters skip.
    return is_inside(int64(block) + 2**31, 2**32)


@host_loop
def _gather_state_indices_host(block_table, request_rows, block_cols, state_indices):  # type: ignore[no-untyped-def]
    for index in range(request_rows.size):
        state_indices[index] = NULL_BLOCK_ID
        if block_cols[index] >= 0:
            state_indices[index] = block_table[request_rows[index], block_cols[index]]


@kernel
def _gather_state_indices_kernel(block_table, request_rows, block_cols, state_indices):  # type: ignore[no-untyped-def]
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    for index in strided(first, request_rows.size, global_index(cuda.gridDim.x, cuda.blockDim.x, 0)):
        row, col = request_rows[index], block_cols[index]
        state_indices[index] = NULL_BLOCK_ID
        if is_inside(row, block_table.shape[0]) & is_inside(col, block_table.shape[1]):
            block = block_table[row, col]
            state_indices[index] = block if _fits_int32(block) else NULL_BLOCK_ID


@host_loop
def _first_bad_entry(block_table, request_rows, block_cols):  # type: ignore[no-untyped-def]
    """First entry outside the table, or whose block id does not fit int32; -1 if there is none."""
    for index in range(request_rows.size):
        row, col = request_rows[index], block_cols[index]
        if not is_inside(row, block_table.shape[0]) or col >= block_table.shape[1]:
            return index
        if col >= 0 and not _fits_int32(block_table[row, col]):
            return index
    return -1


def check_table_extent(block_table: Array, num_rows: int, num_cols: int) -> None:
    """Refuse anything but a block table of at least `num_rows` rows and `num_cols` columns."""
    check_array("block_table", block_table, 2, "iu")
    if num_rows > block_table.shape[0]:
        expected = f"at least {num_rows} rows"
        refuse("block_table", expected, f"{block_table.shape[0]}", "pass the table of the whole batch")
    if num_cols > block_table.shape[1]:
        expected = f"at least {num_cols} columns of state blocks"
        do = "size rows as ceil(max length / state_block_size) and count columns in the state group's blocks"
        refuse("block_table", expected, f"{block_table.shape[1]}", do)


def _refuse_entry(block_table: Any, row: int, col: int) -> None:
    if row < 0:
        refuse("request_rows", "rows of at least 0", row, "pass positions in the batch")
    check_table_extent(block_table, row + 1, col + 1)
    got = f"{block_table[row, col]} at row {row}, column {col}"
    refuse("block_table", "block ids that fit int32", got, "check who filled the table")


def gather_state_indices(
    block_table: Array, request_rows: Array, block_cols: Array, extent: tuple[int, int] | None = None
) -> Array:
    """Look up ``block_table[request_rows, block_cols]`` where there is a column.

    Parameters
    ----------
    block_table : ndarray or cupy.ndarray
        int32 or int64 [rows, C], block ids; any strides.
    request_rows : ndarray or cupy.ndarray
        int64 [R], table row of each entry.
    block_cols : ndarray or cupy.ndarray
        int64 [R], table column of each entry; negative means none, and the table is not read.
    extent : tuple of int, optional
        Rows and columns that the entries need, known on the host. Needed on a device, where values cannot be read
        without waiting; an entry outside the table all the same yields `NULL_BLOCK_ID`.

    Returns
    -------
    ndarray or cupy.ndarray
        int32 [R], block ids; `NULL_BLOCK_ID` where there is no column.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or shapes, an entry outside the table, a block id beyond int32, arrays of different devices.

    Notes
    -----
    On a device: one launch on the current stream, no synchronisation.

    Examples
    --------
    >>> import numpy as np
    >>> table = np.array([[4, 5, 6], [7, 8, 9]], np.int32)
    >>> gather_state_indices(table, np.array([1, 0]), np.array([2, -1])).tolist()
    [9, 0]
    """
    backend = backend_of(block_table=block_table, request_rows=request_rows, block_cols=block_cols)
    if extent is None and not backend.is_host:
        do = "pass one past the highest row and column, known on the host"
        refuse("extent", "the rows and columns needed, on a device", "None", do)
    check_table_extent(block_table, *(extent or (0, 0)))
    check_array("request_rows", request_rows, 1, "i")
    check_array("block_cols", block_cols, 1, "i")
    check_shape("block_cols", block_cols, request_rows.shape, "pass one column for each row")
    arguments = block_table, request_rows, block_cols
    if backend.is_host and (bad := int(_first_bad_entry(*arguments))) >= 0:
        _refuse_entry(block_table, int(request_rows[bad]), int(block_cols[bad]))
    state_indices = backend.empty(request_rows.shape, np.int32)
    if isinstance(backend, DeviceBackend):
        launch_grid(backend, _gather_state_indices_kernel, (1, request_rows.size), (*arguments, state_indices))
    else:
        _gather_state_indices_host(*arguments, state_indices)
    return state_indices
