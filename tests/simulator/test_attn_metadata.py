"""A step's metadata on a device: what is launched and waited for, and arrays that lie in two places."""

from dataclasses import replace

import numpy as np
import pytest

from numba_ckpt.attention import (
    FastPrefillHelper,
    MetadataOptions,
    NoOpBackend,
    NoOpBuilder,
    build_attn_metadata,
)
from numba_ckpt.attention.fast_prefill_backend import fast_prefill_backend
from numba_ckpt.errors import ArgumentError, BackendMixError
from numba_ckpt.testing import SimulatedDevice
from tests.attention.test_build_metadata import LENS, STARTS, batch_of, groups_of, paged, tables_of
from tests.attention.test_build_metadata_golden import CASES, check_case


def moved(device, **more):
    """A batch whose lengths and starts lie on the device, with mirrors on the host."""
    return replace(
        batch_of(seq_lens_cpu_upper_bound=LENS),
        query_start_loc=device.put(STARTS),
        seq_lens=device.put(LENS),
        **more,
    )


def tables_on(device, count):
    tables, slots = tables_of(count)
    return [device.put(table) for table in tables], device.put(slots)


def no_op(count):
    return groups_of(*(NoOpBuilder(None, (), None) for _ in range(count)))


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_recorded_metadata(device, case):
    check_case(case, device.put, device.get)
    assert device.num_launches == 0


def test_requests_of_tokens_are_launched_once_for_all_groups(device):
    metadata = build_attn_metadata(no_op(4), moved(device), *tables_on(device, 4))
    assert (device.num_launches, device.num_copies, device.num_waits) == (0, 0, 0)
    found = [metadata[f"{group}.a"].batch.token_to_req_indices() for group in range(4)]
    assert (device.num_launches, device.num_waits) == (1, 0)
    assert all(indices is found[0] for indices in found)
    assert device.get(found[0]).tolist() == [0, 0, 0, 1, -1, -1]


def test_the_next_step_writes_the_same_buffer(device):
    buffer = device.put(np.full(8, -9, np.int32))
    for _ in range(2):
        indices = moved(device, token_to_req_buffer=buffer).token_to_req_indices()
        assert device.address(indices) == device.address(buffer)
    assert device.num_launches == 2
    assert device.get(buffer).tolist() == [0, 0, 0, 1, -1, -1, -9, -9]


def test_paged_groups_of_one_spec_share_a_plan_and_launch_nothing(device):
    tables, slots = tables_on(device, 2)
    metadata = build_attn_metadata(groups_of(paged(), paged()), moved(device), tables, slots)
    assert [metadata[f"{group}.a"].block_table is tables[group] for group in range(2)] == [True, True]
    assert (device.num_launches, device.num_waits) == (0, 0)


def test_a_fast_prefill_looks_up_its_starts_in_one_launch(device):
    helper = FastPrefillHelper(lambda num_tokens, **_: 4, device.put(np.zeros(8, np.int32)))
    step = helper.prepare(device.put(np.array([2, 3])), np.array([0, 1, 2]), has_prefill=True)
    builder = fast_prefill_backend(NoOpBackend).builder_class()(None, (), None)
    before = device.num_launches
    metadata = build_attn_metadata(
        groups_of(builder), moved(device), *tables_on(device, 1), MetadataOptions(fast_prefill=step)
    )["0.a"]
    assert (device.num_launches - before, device.num_waits) == (1, 0)
    inner = metadata.inner.batch
    assert device.get(inner.query_start_loc).tolist() == inner.query_start_loc_cpu.tolist() == [0, 1, 2, 2]


def test_lengths_on_the_device_are_never_read_back(device):
    batch = replace(moved(device), seq_lens_cpu_upper_bound=None)
    with pytest.raises(ArgumentError, match=r"seq_lens_cpu_upper_bound: expected an array, .+ got None"):
        _ = batch.seq_lens_cpu
    assert device.num_waits == 0


def on_two_places(device):
    """Calls that mix host and device arrays, by what is where it should not be."""
    (tables, slots), (ours, our_slots) = tables_of(2), tables_on(device, 2)

    def build(batch, *given):
        return lambda: build_attn_metadata(no_op(2), batch, *given)

    return {
        "a table on the host": build(moved(device), tables, our_slots),
        "the second table on the host": build(moved(device), [ours[0], tables[1]], our_slots),
        "slots on the host": build(moved(device), ours, slots),
        "a batch on the host": build(batch_of(), ours, our_slots),
        "slots on the device": build(batch_of(), tables, our_slots),
        "lengths on the host": lambda: replace(moved(device), seq_lens=LENS),
        "positions on the host": lambda: replace(moved(device), positions=np.arange(6)),
        "local lengths on the host": lambda: replace(moved(device), dcp_local_seq_lens=LENS),
        "a buffer on the host": lambda: replace(moved(device), token_to_req_buffer=np.zeros(6, np.int32)),
    }


@pytest.mark.parametrize("case", list(on_two_places(SimulatedDevice())))
def test_arrays_in_two_places_are_refused(device, case):
    with pytest.raises(BackendMixError, match=r"arrays: expected all on one device, got .+; move them"):
        on_two_places(device)[case]()
    assert device.num_launches == 0
