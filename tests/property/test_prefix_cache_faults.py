"""Faults planted in the prefix cache: the checks of its random lives catch every one."""

import importlib
import random

import numpy as np
import pytest

from numba_ckpt.cache.pool_calls import release_blocks
from numba_ckpt.cache.pool_memory import cut_pool_words
from numba_ckpt.errors import LedgerError
from numba_ckpt.prefix_cache import HybridPrefixCache, aborts, manager
from numba_ckpt.prefix_cache.book import HIT_STEP, cut_book_words
from numba_ckpt.prefix_cache.chunk_loops import COPY_FROM, INITIAL_BLOCK, RUNNING_BLOCK
from numba_ckpt.prefix_cache.pending import PendingKeys
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
    patch.setattr(
        manager, "commit_chunk", lambda words, book, keys, *rest: commit(words, book, np.roll(keys, 1, axis=0), *rest)
    )


def retire_at_reserve(patch):
    reserve = manager.reserve_chunk

    def early(words, book, table, groups, *rest):
        done = reserve(words, book, table, groups, *rest)
        for row, reserved in zip(table, groups, strict=True):
            if done and reserved[INITIAL_BLOCK] not in (0, reserved[RUNNING_BLOCK], reserved[COPY_FROM]):
                release_blocks(words, row[row == reserved[INITIAL_BLOCK]])
                row[row == reserved[INITIAL_BLOCK]] = 0
        return done

    patch.setattr(manager, "reserve_chunk", early)


def retire_never(patch):
    commit = manager.commit_chunk

    def keep_initial(words, book, keys, table, *rest):
        before, pool = table.copy(), cut_pool_words(words)
        commit(words, book, keys, table, *rest)
        for block in before[(before != table) & (pool.blocks["ref_count"][before] == 0)]:
            pool.blocks[block]["ref_count"] += 1

    patch.setattr(manager, "commit_chunk", keep_initial)


def no_copy_of_a_shared_state(patch):
    reserve = manager.reserve_chunk

    def in_place(words, book, table, groups, *rest):
        done = reserve(words, book, table, groups, *rest)
        for row, reserved in zip(table, groups, strict=True):
            if done and reserved[COPY_FROM]:
                new = row == reserved[RUNNING_BLOCK]
                release_blocks(words, row[new])
                row[new] = reserved[RUNNING_BLOCK] = reserved[COPY_FROM]
                reserved[COPY_FROM] = 0
        return done

    patch.setattr(manager, "reserve_chunk", in_place)


def no_copy_of_a_state_in_flight(patch):
    reserve = manager.reserve_chunk

    def forgetful(words, book, table, groups, start, end, in_flight, *boundaries):
        return reserve(words, book, table, groups, start, end, False, *boundaries)

    patch.setattr(manager, "reserve_chunk", forgetful)


def leak_on_abort(patch):
    undo = aborts.undo_chunk

    def leaky(words, book, table, reserved, start, end):
        held = reserved[reserved[:, RUNNING_BLOCK] != reserved[:, INITIAL_BLOCK], RUNNING_BLOCK]
        undo(words, book, table, reserved, start, end)
        cut_pool_words(words).blocks["ref_count"][held[held > 0]] += 1

    patch.setattr(aborts, "undo_chunk", leaky)


def lost_states_forgotten(patch):
    patch.setattr(ChunkReservation, "moves_in_place", False)


def declined_checkpoints_published(patch):
    commit = HybridPrefixCache.commit
    patch.setattr(HybridPrefixCache, "commit", lambda cache, step, declined=frozenset(): commit(cache, step))


def commits_in_any_order(patch):
    patch.setattr(manager, "check_commit", lambda step, declined: None)


def speculative_blocks_left_behind(patch):
    reserve = manager.reserve_chunk

    def forgetful(words, book, table, groups, *rest):
        before = table.copy()
        done = reserve(words, book, table, groups, *rest)
        for row, old, reserved in zip(table, before, groups, strict=True):
            moved = (old != 0) & (row == 0) & np.isin(old, row)
            if done and reserved[RUNNING_BLOCK] and moved.any():
                row[np.isin(row, old[moved])] = 0
                row[moved] = old[moved]
        return done

    patch.setattr(manager, "reserve_chunk", forgetful)


def hits_without_states(patch):
    look_up = manager.look_up_prefix
    patch.setattr(manager, "look_up_prefix", lambda *arguments: (look_up(*arguments)[1],) * 2 + (0,))


def promises_never_withdrawn(patch):
    patch.setattr(PendingKeys, "settled", lambda pending, chunk: None)


def explained_by_the_last_block_alone(patch):
    explain = importlib.import_module("numba_ckpt.prefix_cache.explain")
    find_holes = explain.find_holes

    def find_few(words, book, keys, last_boundary, holes):
        hit = find_holes(words, book, keys, last_boundary, holes)
        step = cut_book_words(book).sizes[HIT_STEP]
        holes[holes != step * np.arange(1, len(holes) + 1)[:, None]] = 0
        return hit

    patch.setattr(explain, "find_holes", find_few)


FAULTS = [
    promises_never_withdrawn,
    explained_by_the_last_block_alone,
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
    speculative_blocks_left_behind,
    hits_without_states,
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
