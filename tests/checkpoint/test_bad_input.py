"""Every mistake of a caller of the gather, the builder, the layout and the exporters is named and changes nothing."""

import re

import numpy as np
import pytest

from numba_ckpt.checkpoint import (
    CheckpointTargets,
    ConvCache,
    ConvExporter,
    ConvInput,
    ConvRecurrentExporter,
    InitialConvState,
    Mamba2Exporter,
    PrefillCheckpointBuilder,
    PrefillCheckpointMetadata,
    RecurrentCache,
    RecurrentExporter,
    RecurrentInput,
)
from numba_ckpt.errors import ArgumentError, ArgumentTypeError, NumbaCkptError
from numba_ckpt.kernels.gather_state_indices import gather_state_indices
from numba_ckpt.planning import BatchLayout, CheckpointGeometry, compute_chunk_layout
from numba_ckpt.testing import poisoned

MESSAGE = re.compile(r"^[\w.]+: expected .+, got .+; \w.+$", re.DOTALL)
GEOMETRY = CheckpointGeometry(8, 64, 8, checkpoint_alignment=8)


def f4(*shape):
    return np.zeros(shape, np.float32)


def i4(*values):
    return np.array(values, np.int32)


def read_only(array):
    array.flags.writeable = False
    return array


def refused(call, name, error=ArgumentError):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert isinstance(caught.value, NumbaCkptError)
    assert MESSAGE.match(message), message
    assert message.startswith(name), message


TABLE = np.arange(12, dtype=np.int32).reshape(3, 4)
GATHERS = {
    "a float table": ((TABLE.astype("f4"), i4(0), i4(0)), "block_table", ArgumentTypeError),
    "a 1-d table": ((TABLE[0], i4(0), i4(0)), "block_table", ArgumentError),
    "a list for a table": ((TABLE.tolist(), i4(0), i4(0)), "block_table", ArgumentTypeError),
    "float rows": ((TABLE, np.array([0.0]), i4(0)), "request_rows", ArgumentTypeError),
    "bool rows": ((TABLE, np.array([True]), i4(0)), "request_rows", ArgumentTypeError),
    "unsigned columns": ((TABLE, i4(0), np.array([0], np.uint32)), "block_cols", ArgumentTypeError),
    "2-d columns": ((TABLE, i4(0), i4(0)[None]), "block_cols", ArgumentError),
    "a column too many": ((TABLE, i4(0), i4(0, 1)), "block_cols", ArgumentError),
    "a negative row": ((TABLE, i4(-1), i4(0)), "request_rows", ArgumentError),
    "a row outside the table": ((TABLE, i4(3), i4(0)), "block_table", ArgumentError),
    "a column outside the table": ((TABLE, i4(0), i4(4)), "block_table", ArgumentError),
    "an extent outside the table": ((TABLE, i4(0), i4(0), (3, 5)), "block_table", ArgumentError),
    "a block id beyond int32": ((np.full((1, 1), 2**31), i4(0), i4(0)), "block_table", ArgumentError),
}


@pytest.mark.parametrize(("arguments", "name", "error"), GATHERS.values(), ids=GATHERS)
def test_gather(arguments, name, error):
    refused(lambda: gather_state_indices(*arguments), name, error)


def step(seq_lens=(0, 200), starts=(0, 0, 200), table=TABLE):
    return BatchLayout(np.array(seq_lens), np.array(starts), table)


BUILDS = {
    "no batch": (None, [1], "batch", ArgumentTypeError),
    "a row outside the batch": (step(), [2], "request_rows", ArgumentError),
    "a negative row": (step(), [-1], "request_rows", ArgumentError),
    "float rows": (step(), [0.5], "request_rows", ArgumentTypeError),
    "a bool row": (step(), [True], "request_rows", ArgumentTypeError),
    "nested rows": (step(), [[1]], "request_rows", ArgumentError),
    "a scalar for rows": (step(), 1, "request_rows", ArgumentTypeError),
    "a start too few": (step(starts=(0, 200)), [1], "query_start_loc_cpu", ArgumentError),
    "float lengths": (step(seq_lens=(0.0, 200.0)), [1], "seq_lens_cpu", ArgumentTypeError),
    "bool lengths": (step(seq_lens=(True, True)), [1], "seq_lens_cpu", ArgumentTypeError),
    "starts that fall": (step(starts=(0, 200, 100)), [1], "query_lens", ArgumentError),
    "a query longer than its sequence": (step(seq_lens=(0, 100)), [1], "query_lens", ArgumentError),
    "a negative length": (step(seq_lens=(0, -1), starts=(0, 0, 0)), [1], "seq_lens", ArgumentError),
    "a table of too few rows": (step(table=TABLE[:1]), [1], "block_table", ArgumentError),
    "a table of too few columns": (step(table=TABLE[:, :2]), [1], "block_table", ArgumentError),
    "a 1-d table": (step(table=TABLE[0]), [1], "block_table", ArgumentError),
    "a float table": (step(table=TABLE.astype("f8")), [1], "block_table", ArgumentTypeError),
}


@pytest.mark.parametrize(("batch", "rows", "name", "error"), BUILDS.values(), ids=BUILDS)
def test_build(batch, rows, name, error):
    refused(lambda: PrefillCheckpointBuilder(GEOMETRY).build(batch, rows), name, error)


FOREIGN = np.dtype(np.float16).newbyteorder()
BUILDERS = {
    "a dict for a geometry": (lambda: PrefillCheckpointBuilder({}), "geometry", ArgumentTypeError),
    "an unknown cache mode": (lambda: PrefillCheckpointBuilder(GEOMETRY, "aligned"), "cache_mode", ArgumentError),
    "negative blocks": (
        lambda: PrefillCheckpointBuilder(GEOMETRY, "align", -1), "num_checkpoint_blocks", ArgumentError,
    ),
    "a bool for blocks": (
        lambda: PrefillCheckpointBuilder(GEOMETRY, "align", True), "num_checkpoint_blocks", ArgumentTypeError,
    ),
    "regathering what was not kept": (
        lambda: PrefillCheckpointMetadata(i4(8), i4(1), i4(8), i4(9)).regather_state_indices(TABLE),
        "request_rows", ArgumentError,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "name", "error"), BUILDERS.values(), ids=BUILDERS)
def test_builder(call, name, error):
    refused(call, name, error)


LAYOUTS = {
    "a chunk size of 0": (([0], [0, 5], 0), "chunk_size", ArgumentError),
    "a float chunk size": (([0], [0, 5], 4.0), "chunk_size", ArgumentTypeError),
    "a start too few": (([0, 0], [0, 5], 4), "query_start_loc", ArgumentError),
    "starts that fall": (([0, 0], [0, 5, 4], 4), "query_start_loc", ArgumentError),
    "a negative start": (([0], [-1, 5], 4), "query_start_loc", ArgumentError),
    "negative computed tokens": (([-1], [0, 5], 4), "num_computed_tokens", ArgumentError),
    "float computed tokens": (([0.0], [0, 5], 4), "num_computed_tokens", ArgumentTypeError),
    "an offset beyond its row": (([0, 0], [0, 5, 9], 4, [0, 5]), "checkpoint_offsets", ArgumentError),
    "a negative offset": (([0], [0, 5], 4, [-1]), "checkpoint_offsets", ArgumentError),
    "an offset too few": (([0, 0], [0, 5, 9], 4, [1]), "checkpoint_offsets", ArgumentError),
    "a batch beyond int32": (([0], [0, 2**31], 4), "query_start_loc", ArgumentError),
}


@pytest.mark.parametrize(("arguments", "name", "error"), LAYOUTS.values(), ids=LAYOUTS)
def test_chunk_layout(arguments, name, error):
    refused(lambda: compute_chunk_layout(*arguments), name, error)


CACHES = {
    "an array for a conv cache": (lambda: ConvRecurrentExporter(f4(4, 2, 3), None), "conv_cache", ArgumentTypeError),
    "no cache": (lambda: ConvExporter(None), "caches", ArgumentTypeError),
    "a 2-d conv cache": (lambda: ConvCache(f4(4, 3)), "conv_cache.states", ArgumentError),
    "a list for a conv cache": (lambda: ConvCache([[[0.0]]]), "conv_cache.states", ArgumentTypeError),
    "an unknown layout": (lambda: ConvCache(f4(4, 2, 3), "channels_last"), "conv_cache.layout", ArgumentError),
    "a window of no slots": (lambda: ConvCache(f4(4, 2, 3), state_len=0), "conv_cache.state_len", ArgumentError),
    "a window beyond its slots": (lambda: ConvCache(f4(4, 2, 3), state_len=4), "conv_cache.state_len", ArgumentError),
    "slots in the other layout": (
        lambda: ConvCache(f4(4, 2, 3), "len_first", state_len=3), "conv_cache.state_len", ArgumentError,
    ),
    "a read-only conv cache": (lambda: ConvCache(read_only(f4(4, 2, 3))), "conv_cache.states", ArgumentError),
    "a broadcast conv cache": (
        lambda: ConvCache(np.lib.stride_tricks.as_strided(f4(2, 3), (4, 2, 3), (0, 12, 4))),
        "conv_cache.states", ArgumentError,
    ),
    "16-byte elements": (lambda: ConvCache(np.zeros((4, 2, 3), complex)), "conv_cache.states", ArgumentTypeError),
    "objects": (lambda: RecurrentCache(np.zeros((4, 2), object)), "recurrent_cache.states", ArgumentTypeError),
    "a read-only recurrent cache": (
        lambda: RecurrentCache(read_only(f4(4, 2))), "recurrent_cache.states", ArgumentError,
    ),
    "states without axes": (lambda: RecurrentCache(f4(4)), "recurrent_cache.states", ArgumentError),
    "states that are not contiguous": (
        lambda: RecurrentCache(f4(4, 3, 5).transpose(0, 2, 1)), "recurrent_cache.states", ArgumentError,
    ),
    "pages that overlap": (
        lambda: RecurrentCache(np.lib.stride_tricks.as_strided(f4(40), (4, 8), (16, 4))),
        "recurrent_cache.states", ArgumentError,
    ),
    "bits of an unknown dtype": (
        lambda: RecurrentCache(np.zeros((4, 2), np.uint16), dtype="fp8"), "recurrent_cache.dtype", ArgumentError,
    ),
    "bfloat16 bits of 4 bytes": (
        lambda: RecurrentCache(f4(4, 2), dtype="bfloat16"), "recurrent_cache.dtype", ArgumentTypeError,
    ),
    "caches of different pools": (
        lambda: ConvRecurrentExporter(ConvCache(f4(4, 2, 3)), RecurrentCache(f4(5, 2))),
        "recurrent_cache", ArgumentError,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "name", "error"), CACHES.values(), ids=CACHES)
def test_caches(call, name, error):
    refused(call, name, error)


class Layer:
    """A layer of two channels and windows of three in eight poisoned blocks, exported with one thing wrong."""

    def __init__(self):
        self.conv, self.states = poisoned((8, 2, 3), np.float32), poisoned((8, 2, 2), np.float32)

    def export(self, offsets=(5, 6), blocks=(3, 4), rows=None, conv=None, recurrent=None, caches=None, **tokens):
        offsets, blocks = np.asarray(offsets), np.asarray(blocks)
        targets = CheckpointTargets(offsets, blocks, rows)
        conv = conv() if conv is not None else self.source(**tokens)
        recurrent = recurrent if recurrent is not None else RecurrentInput(f4(2, 2, 2))
        caches = caches or (ConvCache(self.conv), RecurrentCache(self.states))
        ConvRecurrentExporter(*caches).export(targets, conv, recurrent)

    def source(self, tokens=None, starts=(0, 8, 16), mapped=None, initial=None):
        tokens = f4(16, 2) if tokens is None else tokens
        mapped = None if mapped is None else np.asarray(mapped)
        if initial is not None:
            initial = InitialConvState(*initial(self)) if callable(initial) else InitialConvState(*initial)
        return ConvInput(tokens, np.asarray(starts), mapped, initial)


SHORT = {"offsets": (2, 6)}
EXPORTS = {
    "float offsets": ({"offsets": (5.0, 6.0)}, "offsets", ArgumentTypeError),
    "bool offsets": ({"offsets": (True, True)}, "offsets", ArgumentTypeError),
    "unsigned blocks": ({"blocks": np.array([3, 4], np.uint32)}, "state_indices", ArgumentTypeError),
    "a block too few": ({"blocks": (3,)}, "state_indices", ArgumentError),
    "a row too few": ({"rows": i4(0)}, "rows", ArgumentError),
    "2-d offsets": ({"offsets": [[5, 6]]}, "offsets", ArgumentError),
    "a list for rows": ({"rows": [0, 1]}, "rows", ArgumentTypeError),
    "a negative offset": ({"offsets": (-5, 6)}, "offsets", ArgumentError),
    "an offset beyond its row": ({"offsets": (9, 6)}, "offsets", ArgumentError),
    "a block outside the pool": ({"blocks": (3, 8)}, "state_indices", ArgumentError),
    "a negative block that is no padding": ({"blocks": (3, -2)}, "state_indices", ArgumentError),
    "a block for two checkpoints": ({"blocks": (3, 3)}, "state_indices", ArgumentError),
    "a row outside the batch": ({"rows": i4(0, 2)}, "rows", ArgumentError),
    "a negative row": ({"rows": i4(0, -1)}, "rows", ArgumentError),
    "fewer checkpoints than rows": ({"offsets": (5,), "blocks": (3,)}, "checkpoint", ArgumentError),
    "1-d tokens": ({"tokens": f4(16)}, "tokens", ArgumentError),
    "tokens of other channels": ({"tokens": f4(16, 3)}, "tokens", ArgumentError),
    "tokens of another dtype": ({"tokens": np.zeros((16, 2))}, "tokens", ArgumentTypeError),
    "an array for initial windows": (
        {"conv": lambda: ConvInput(f4(16, 2), i4(0, 8, 16), initial=f4(2, 2, 3))}, "initial", ArgumentTypeError,
    ),
    "tokens of the same size": ({"tokens": np.zeros((16, 2), np.int32)}, "tokens", ArgumentTypeError),
    "too few tokens": ({"tokens": f4(15, 2)}, "query_start_loc", ArgumentError),
    "no starts": ({"starts": ()}, "query_start_loc", ArgumentTypeError),
    "float starts": ({"starts": (0.0, 8.0, 16.0)}, "query_start_loc", ArgumentTypeError),
    "starts that fall": ({"starts": (0, 8, 4)}, "offsets", ArgumentError),
    "a negative start": ({"starts": (-1, 8, 16)}, "query_start_loc", ArgumentError),
    "a map of too few tokens": ({"mapped": range(15)}, "query_start_loc", ArgumentError),
    "a map that leaves the tokens": ({"mapped": [*range(12), 16, 16, 16, 16]}, "token_indices", ArgumentError),
    "a map to negative tokens": ({"mapped": [-1] * 16}, "token_indices", ArgumentError),
    "a float map": ({"mapped": [0.0] * 16}, "token_indices", ArgumentTypeError),
    "a short offset without a window": (SHORT, "offsets", ArgumentError),
    "an initial window outside its array": (
        {**SHORT, "initial": (f4(1, 2, 3), i4(1, 0))}, "initial.indices", ArgumentError,
    ),
    "the null block for an initial window": (
        {**SHORT, "initial": lambda layer: (layer.conv, i4(0, 1))}, "initial.indices", ArgumentError,
    ),
    "an initial window that is overwritten": (
        {**SHORT, "initial": lambda layer: (layer.conv, i4(4, 1))}, "initial.indices", ArgumentError,
    ),
    "initial windows of other channels": (
        {**SHORT, "initial": (f4(2, 3, 3), i4(0, 1))}, "initial.states", ArgumentError,
    ),
    "initial windows in another view of the cache": (
        {**SHORT, "initial": lambda layer: (layer.conv[1:], i4(1, 0))}, "initial.states", ArgumentError,
    ),
    "initial windows of fewer slots": ({**SHORT, "initial": (f4(2, 2, 2), i4(0, 1))}, "initial.states", ArgumentError),
    "initial windows of another dtype": (
        {**SHORT, "initial": (np.zeros((2, 2, 3)), i4(0, 1))}, "initial.states", ArgumentTypeError,
    ),
    "an initial window too few": ({**SHORT, "initial": (f4(2, 2, 3), i4(0))}, "initial.indices", ArgumentError),
    "flags that are no bools": (
        {**SHORT, "initial": (f4(2, 2, 3), i4(0, 1), i4(1, 1))}, "initial.has_initial_state", ArgumentTypeError,
    ),
}  # fmt: skip


def check_layer(arguments, name, error):
    layer = Layer()
    refused(lambda: layer.export(**arguments), name, error)
    assert np.isnan(layer.conv).all()
    assert np.isnan(layer.states).all()


@pytest.mark.parametrize(("arguments", "name", "error"), EXPORTS.values(), ids=EXPORTS)
def test_export(arguments, name, error):
    check_layer(arguments, name, error)


STATES = {
    "states of another shape": ((f4(2, 2, 3),), "recurrent.states", ArgumentError),
    "states of another dtype": ((np.zeros((2, 2, 2)),), "recurrent.states", ArgumentTypeError),
    "states that are not contiguous": ((f4(2, 2, 2).transpose(0, 2, 1),), "recurrent.states", ArgumentError),
    "states of another orientation": ((f4(2, 2, 2), None, "VK"), "recurrent.orientation", ArgumentError),
    "too few states": ((f4(1, 2, 2),), "recurrent.rows", ArgumentError),
    "a source outside the states": ((f4(2, 2, 2), i4(0, 2)), "recurrent.rows", ArgumentError),
    "a negative source": ((f4(2, 2, 2), i4(0, -1)), "recurrent.rows", ArgumentError),
    "a source too few": ((f4(2, 2, 2), i4(0)), "recurrent.rows", ArgumentError),
    "float sources": ((f4(2, 2, 2), np.zeros(2)), "recurrent.rows", ArgumentTypeError),
}


@pytest.mark.parametrize(("states", "name", "error"), STATES.values(), ids=STATES)
def test_export_states(states, name, error):
    layer = Layer()
    refused(lambda: layer.export(recurrent=RecurrentInput(*states)), name, error)
    assert np.isnan(layer.conv).all()
    assert np.isnan(layer.states).all()


def test_foreign_byte_order_is_carried_but_not_converted():
    swapped = np.zeros((2, 4), FOREIGN)
    target = CheckpointTargets(i4(1), i4(1))
    RecurrentExporter(RecurrentCache(swapped)).export(target, RecurrentInput(np.full((1, 4), 1.5, FOREIGN)))
    assert swapped[1].tolist() == [1.5] * 4
    for cache, source in (
        (RecurrentCache(np.zeros((2, 4), FOREIGN)), f4(1, 4)),
        (RecurrentCache(np.zeros((2, 4), np.uint16), dtype="float16"), np.zeros((1, 4), FOREIGN)),
    ):
        call = RecurrentExporter(cache).export
        refused(
            lambda call=call, source=source: call(target, RecurrentInput(source)), "recurrent.states", ArgumentTypeError
        )


def test_a_layout_of_another_batch():
    exporter = Mamba2Exporter(ConvCache(f4(4, 1, 3)), RecurrentCache(f4(4, 2), "HK"))
    source, target = ConvInput(f4(8, 1), i4(0, 8)), CheckpointTargets(i4(4), i4(1))
    layout = compute_chunk_layout([0], [0, 8], 4)
    refused(lambda: exporter.export(target, source, f4(1, 2), layout, "HK"), "chunk_states")
    refused(lambda: exporter.export(target, source, f4(2, 2), layout, "KH"), "recurrent.orientation")
    refused(lambda: exporter.export(target, source, f4(3, 2), compute_chunk_layout([0], [0, 9], 4), "HK"), "chunks")


def test_chunks_of_a_flat_list():
    layout = compute_chunk_layout([0, 0], [0, 8, 16], 4)
    assert layout.chunks_ending_at([0, 1, 0], [4, 8, 0]).tolist() == [0, 3, 0]
    refused(lambda: layout.chunks_ending_at([0, 1], [4]), "offsets")
    refused(lambda: layout.chunks_ending_at([0.5], [4]), "rows", ArgumentTypeError)
    refused(lambda: layout.chunks_ending_at([0], [-4]), "offsets")
    refused(lambda: layout.chunks_ending_at([0], [12]), "chunks")  # a chunk of row 1 ends there
    refused(lambda: layout.chunks_ending_at([2], [4]), "chunks")


def test_sources_inside_the_caches():
    layer = Layer()
    refused(lambda: layer.export(tokens=layer.conv.reshape(-1, 2)[:16]), "tokens")
    refused(lambda: layer.export(recurrent=RecurrentInput(layer.states[1:3])), "recurrent.states")
    assert np.isnan(layer.conv).all()
    assert np.isnan(layer.states).all()


def test_chunk_states_without_their_chunk():
    exporter = Mamba2Exporter(ConvCache(f4(4, 1, 3)), RecurrentCache(f4(4, 2)))
    source, targets = ConvInput(f4(8, 1), i4(0, 8)), CheckpointTargets(i4(5), i4(1))
    refused(lambda: exporter.export(targets, source, f4(2, 2), i4(2)), "recurrent.rows")
    refused(lambda: exporter.export(targets, source, f4(2, 2), compute_chunk_layout([0], [0, 8], 4)), "chunks")


def test_exporters_of_one_cache_check_alike():
    layer = Layer()
    short = CheckpointTargets(i4(2), i4(1))
    refused(lambda: ConvExporter(ConvCache(layer.conv)).export(short, ConvInput(f4(8, 2), i4(0, 8))), "offsets")
    outside = CheckpointTargets(i4(2), i4(9))
    refused(
        lambda: RecurrentExporter(RecurrentCache(layer.states)).export(outside, RecurrentInput(f4(1, 2, 2))),
        "state_indices",
    )


def test_there_are_at_least_sixty_of_them():
    assert sum(map(len, (GATHERS, BUILDS, BUILDERS, LAYOUTS, CACHES, EXPORTS, STATES))) >= 60
