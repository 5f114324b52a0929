"""Copy whole blocks of all layers, in one launch; bytes that several layers share are moved once."""

import numpy as np

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import check_array, check_shape, refuse
from numba_ckpt._jit import address_of, copy_bytes, cuda, host_loop, kernel, strided
from numba_ckpt.kernels._launch import launch_grid, num_run_threads
from numba_ckpt.kernels._runs import copy_run
from numba_ckpt.kernels.block_pieces import BlockPieces, check_block_ids
from numba_ckpt.rules import NULL_BLOCK_ID, global_index, is_inside, is_pool_block

__all__ = ["check_copies", "copy_blocks"]


@host_loop
def _copy_blocks_host(words, pieces, num_blocks, sources, destinations):  # type: ignore[no-untyped-def]
    for k in range(sources.size):
        for piece in range(pieces.shape[0]):
            source = global_index(sources[k], pieces[piece, 1], pieces[piece, 0])
            destination = global_index(destinations[k], pieces[piece, 1], pieces[piece, 0])
            address, size = words.ctypes.data, words.itemsize
            copy_bytes(address + destination * size, address + source * size, pieces[piece, 2] * size)


@kernel
def _copy_blocks_kernel(words, pieces, num_blocks, sources, destinations):  # type: ignore[no-untyped-def]
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    step = global_index(cuda.gridDim.x, cuda.blockDim.x, 0)
    for k in strided(cuda.blockIdx.y, sources.size, cuda.gridDim.y):
        are_blocks = is_pool_block(sources[k], num_blocks) & is_pool_block(destinations[k], num_blocks)
        for piece in strided(cuda.blockIdx.z, pieces.shape[0], cuda.gridDim.z):
            source = global_index(sources[k], pieces[piece, 1], pieces[piece, 0])
            destination = global_index(destinations[k], pieces[piece, 1], pieces[piece, 0])
            size = pieces[piece, 2]
            if are_blocks & is_inside(max(source, destination) + size - 1, words.size):
                written, read = address_of(words, (destination,)), address_of(words, (source,))
                copy_run(written, read, size, words.itemsize, first, step)


def check_copies(sources: np.ndarray, destinations: np.ndarray, num_blocks: int) -> None:
    """Refuse host arrays of copies from or to no block of the pool, or whose outcome would depend on their order."""
    check_shape("destinations", destinations, tuple(sources.shape), "pass one for each source")
    for name, blocks in (("sources", sources), ("destinations", destinations)):
        check_block_ids(name, blocks, num_blocks)
        if (is_null := np.equal(blocks, NULL_BLOCK_ID)).any():
            got = f"block 0 at entry {int(np.argmax(is_null))}"
            refuse(name, "blocks other than the null block", got, "leave this copy out")
    written = set(destinations.tolist())
    if len(written) < destinations.size:
        refuse("destinations", "each block once", "one of them twice", "copy to blocks of their own")
    if both := written.intersection(sources.tolist()):
        got, do = f"block {min(both)} among both", "copy in two calls, in the order you need"
        refuse("destinations", "blocks that are no sources", got, do)


def copy_blocks(blocks: BlockPieces, sources: Array, destinations: Array) -> None:
    """Copy blocks onto others, all layers and padding included.

    Parameters
    ----------
    blocks : BlockPieces
        Where the bytes of every block lie. Written.
    sources, destinations : ndarray or cupy.ndarray
        int32 or int64 [K]: block ``sources[k]`` is copied onto ``destinations[k]``. Each destination once, and none of
        them a source, since copies run in no order.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dtypes or shapes, arrays of different devices; on a host also ids outside the pool, the null block, and
        destinations that come twice or are sources.

    Notes
    -----
    On a device: one launch on the current stream, no synchronisation; a copy from or to an id outside the pool, or the
    null block, is left out.

    Examples
    --------
    >>> import numpy as np
    >>> memory = np.arange(12, dtype=np.uint8)  # four blocks, of two bytes in the first half and one in the second
    >>> blocks = BlockPieces(memory, np.array([[0, 2, 2], [8, 1, 1]]), num_blocks=4, max_words=2)
    >>> copy_blocks(blocks, np.array([1]), np.array([3]))
    >>> memory.tolist()
    [0, 1, 2, 3, 4, 5, 2, 3, 8, 9, 10, 9]
    """
    check_array("sources", sources, 1, "iu")
    check_array("destinations", destinations, 1, "iu")
    check_shape("destinations", destinations, tuple(sources.shape), "pass one for each source")
    words, pieces, num_blocks, max_words = blocks
    backend = backend_of(words=words, pieces=pieces, sources=sources, destinations=destinations)
    arguments = words, pieces, num_blocks, sources, destinations
    if isinstance(backend, DeviceBackend):
        shape = pieces.shape[0], sources.size, num_run_threads(max_words, words.itemsize)
        launch_grid(backend, _copy_blocks_kernel, shape, arguments)
    else:
        check_copies(sources, destinations, num_blocks)
        _copy_blocks_host(*arguments)
