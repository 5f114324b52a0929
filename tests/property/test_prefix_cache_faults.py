"""Faults planted in the prefix cache: the checks of its random lives catch every one."""

import random

import numpy as np
import pytest

from numba_ckpt.cache.pool_loops import release_blocks
from numba_ckpt.errors import LedgerError
from numba_ckpt.prefix_cache import HybridPrefixCache, manager
from numba_ckpt.prefix_cache.chunk_loops import COPY_FROM, INITIAL_BLOCK, RUNNING_BLOCK
from numba_ckpt.prefix_cache.request import ChunkReservation
from tests.property.test_prefix_cache import draw_world, live

NUM_LIVES, NUM_EVENTS = 30, 250


def publish_at_reserve(patch):
    reserve = HybridPrefixCache.reserve

    def early(cache, step, request, num_new_tokens):
        chunk = reserve(cache, step, request, num_new_tokens)
        if chunk is not None:
            for index, group in enumerate(cache.config.groups):
                unit, size = cache.config.hash_block_size, group.block_size
                cols = range(-(-chunk.start // size), chunk.end // size)
                blocks = [int(request.table[index, col]) for col in cols]
                keys = request.keys[[(col + 1) * size // unit - 1 for col in cols]].reshape(-1, 2)
                cache.pool.publish(blocks, keys, index)
        return chunk

    patch.setattr(HybridPrefixCache, "reserve", early)


def key_of_another_boundary(patch):
    commit = manager.commit_chunk
    patch.setattr(manager, "commit_chunk", lambda pool, keys, *rest: commit(pool, np.roll(keys, 1, axis=0), *rest))


def retire_at_reserve(patch):
    reserve = manager.reserve_chunk

    def early(pool, groups, sizes, table, *rest):
        done = reserve(pool, groups, sizes, table, *rest)
        for row, reserved in zip(table, rest[-1], strict=True):
            if done and reserved[INITIAL_BLOCK] not in (0, reserved[RUNNING_BLOCK], reserved[COPY_FROM]):
                release_blocks(pool, row[row == reserved[INITIAL_BLOCK]])
                row[row == reserved[INITIAL_BLOCK]] = 0
        return done

    patch.setattr(manager, "reserve_chunk", early)


def retire_never(patch):
    commit = manager.commit_chunk

    def keep_initial(pool, keys, groups, sizes, table, *rest):
        before = table.copy()
        commit(pool, keys, groups, sizes, table, *rest)
        for block in before[(before != table) & (pool.blocks["ref_count"][before] == 0)]:
            pool.blocks[block]["ref_count"] += 1

    patch.setattr(manager, "commit_chunk", keep_initial)


def no_copy_of_a_shared_state(patch):
    reserve = manager.reserve_chunk

    def in_place(pool, groups, sizes, table, *rest):
        done = reserve(pool, groups, sizes, table, *rest)
        for row, reserved in zip(table, rest[-1], strict=True):
            if done and reserved[COPY_FROM]:
                new = row == reserved[RUNNING_BLOCK]
                release_blocks(pool, row[new])
                row[new] = reserved[RUNNING_BLOCK] = reserved[COPY_FROM]
                reserved[COPY_FROM] = 0
        return done

    patch.setattr(manager, "reserve_chunk", in_place)


def no_copy_of_a_state_in_flight(patch):
    reserve = manager.reserve_chunk

    def forgetful(pool, groups, sizes, table, start, end, in_flight, keep, reserved):
        return reserve(pool, groups, sizes, table, start, end, False, keep, reserved)

    patch.setattr(manager, "reserve_chunk", forgetful)


def leak_on_abort(patch):
    undo = manager.undo_chunk

    def leaky(pool, groups, table, start, end, reserved):
        held = reserved[reserved[:, RUNNING_BLOCK] != reserved[:, INITIAL_BLOCK], RUNNING_BLOCK]
        undo(pool, groups, table, start, end, reserved)
        pool.blocks["ref_count"][held[held > 0]] += 1

    patch.setattr(manager, "undo_chunk", leaky)


def lost_states_forgotten(patch):
    patch.setattr(ChunkReservation, "moves_in_place", False)


def declined_checkpoints_published(patch):
    commit = HybridPrefixCache.commit
    patch.setattr(HybridPrefixCache, "commit", lambda cache, step, declined=frozenset(): commit(cache, step))


def commits_in_any_order(patch):
    patch.setattr(manager, "check_commit", lambda step, declined: None)


def no_window_before_the_hit(patch):
    find = manager.find_hit
    patch.setattr(manager, "find_hit", lambda *arguments: (find(*arguments)[1],) * 2)


FAULTS = [
    publish_at_reserve,
    key_of_another_boundary,
    retire_at_reserve,
    retire_never,
    no_copy_of_a_shared_state,
    no_copy_of_a_state_in_flight,
    leak_on_abort,
    lost_states_forgotten,
    declined_checkpoints_published,
    commits_in_any_order,
    no_window_before_the_hit,
]


def _live_on():
    for seed in range(NUM_LIVES):
        rng = random.Random(seed)
        live(draw_world(rng.choice), rng, NUM_EVENTS)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_caught(monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises((AssertionError, LedgerError, pytest.fail.Exception)):
        _live_on()
