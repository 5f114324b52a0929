"""A small engine around the prefix cache: requests, open steps, a worker with contents, and a check at every turn."""

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from numba_ckpt.errors import ArgumentError
from numba_ckpt.prefix_cache import (
    CacheStep,
    HybridPrefixCache,
    PrefillProgress,
    PrefixHasher,
    SplitPolicy,
    WriteLedger,
    split_prefill,
)
from tests.prefix_cache.content_worker import ContentWorker, tokens_of
from tests.prefix_cache.prefix_oracle import held_cols, last_boundary, longest_hit, publications, serves

BUDGET = 16
# What becomes of a step at the worker's.
RUNS, DECLINES, FAILS, WAITS = "runs", "declines", "fails", "waits"


class OpenStep(NamedTuple):
    step: CacheStep
    fate: str
    declined: frozenset
    read: set
    written: set


class CacheWorld:
    def __init__(self, config, num_blocks, retention):
        self.hasher = PrefixHasher(config.hash_block_size, key=bytes(16))
        self.cache = HybridPrefixCache(config, num_blocks, self.hasher, retention, WriteLedger())
        self.config, self.pool, self.retention = config, self.cache.pool, retention
        self.requests, self.prompts, self.junctions, self.open, self.forming = {}, {}, {}, [], []
        self.seen = Counter()
        # (group, text) stored and texts computed since the last reset, and texts computed before it.
        self.stored, self.computed, self.forgotten = set(), set(), set()
        self._keys = {}
        self._num_added = 0
        self.worker = ContentWorker(self.cache, self.key_of)
        states = [group for group in config.groups if group.kind == "state"]
        coarsest = max(states, key=lambda group: group.block_size, default=None)
        self.policy = coarsest and SplitPolicy(config.geometry_of(coarsest), BUDGET, exact_junction=True)

    def key_of(self, prefix):
        """Key of a text with its salt, made from nothing else."""
        if prefix not in self._keys:
            salt, _, text = prefix.partition(":")
            self._keys[prefix] = tuple(self.hasher.hash_prompt(tokens_of(text), salt.encode())[-1].tolist())
        return self._keys[prefix]

    # What happens.

    def add(self, prompt):
        self._num_added += 1
        name = f"request {self._num_added}"
        self.prompts[name] = prompt
        self.requests[name] = self.cache.add(name, tokens_of(prompt.text), prompt.salt.encode())

    def append(self, name, output):
        """Let a request have had outputs, and have them computed like a prompt or a decode."""
        prompt = self.prompts[name]
        self.prompts[name] = prompt._replace(output=prompt.output + output)
        self.cache.append_tokens(self.requests[name], tokens_of(output))

    def look_up(self, name):
        request, prompt = self.requests[name], self.prompts[name]
        published = self.published()
        expected = longest_hit(self.config, published, prompt)
        soon, _ = longest_hit(self.config, published | self.pending(), prompt)
        self.explain(name)
        hit = self.cache.look_up(request)
        assert hit == (*expected, soon if soon > expected[0] else 0)
        self.seen["waits"] += hit.pending_tokens > 0
        assert request.num_computed_tokens == hit.num_tokens < len(prompt.text)
        writing = set().union(*(opened.written for opened in self.open))
        assert writing.isdisjoint(request.table.ravel().tolist()), "served before its commit"
        self.junctions[name] = hit.attention_tokens if hit.attention_tokens > hit.num_tokens else 0
        self.seen["hits"] += hit.num_tokens > 0
        self.seen["junctions"] += self.junctions[name] > 0
        return hit

    def explain(self, name):
        """Ask why a request's prompt is found, or not: what is said must be so, and end where a look-up would."""
        prompt, published, pending = self.prompts[name], self.published(), self.pending()
        last, best = last_boundary(self.config, len(prompt.text)), []
        for verdict in self.cache.explain(self.requests[name]):
            place, said = (verdict.group, prompt.prefix(verdict.num_tokens)), verdict.verdict
            self.seen[said] += 1
            if verdict.group < 0:
                assert last < verdict.num_tokens <= len(prompt.text)
                continue
            is_served = serves(self.config, verdict.group, published, prompt, verdict.num_tokens)
            assert (said == "hit") == is_served
            best = [p for p in best if p == verdict.num_tokens] + [verdict.num_tokens] * is_served
            if said == "margin":
                assert self.config.drop_eagle_block
            elif "the block that ends on" not in verdict.reason and not is_served:
                assert place not in published
                assert (said == "being written") == (place in pending)
                assert said != "evicted" or place in self.stored
                assert said != "reset" or any(text.startswith(place[1]) for text in self.forgotten)
                assert said != "unknown prefix" or place not in self.stored or "too long ago" in verdict.reason
        hit, _ = longest_hit(self.config, published, prompt)
        assert hit == (best[0] if len(best) == len(self.config.groups) else 0)

    def run_step(self, names, length, fate, split):
        """Open a step with a chunk of each request, of about `length` tokens, and hand it to the worker."""
        step = self.cache.begin_step()
        self.forming = [step]
        for name in dict.fromkeys(names):
            self._reserve(step, name, length, split)
        asked = frozenset(chunk.request.request_id for chunk in step.reservations if chunk.has_checkpoint)
        declined = asked if fate == DECLINES else frozenset()
        for name in step.request_ids - asked:
            self._refused(lambda name=name: self.cache.commit(step, {name}))
        read, written = set(), set().union(*map(self.worker.blocks_written, step.reservations))
        if fate != WAITS and step.reservations:
            read = self.worker.execute(step, self.prompts, declined, fails=fate == FAILS)
        for chunk in step.reservations:
            self.seen["skipped"] += int((chunk.groups[:, 6] > 0).sum())
            self.seen["checkpoints"] += int((chunk.groups[:, 0] > 0).sum())
            self.seen["copies"] += len(chunk.copies)
            self.seen["pipelined"] += chunk.request.num_in_flight > 1
        self.open.append(OpenStep(step, fate, declined, read, written))
        self.forming = []

    def _reserve(self, step, name, length, split):
        request = self.requests[name]
        if self._is_stalled(name):
            return
        if request.num_in_flight == 0:
            if request.has_lost_state:
                self._refused(lambda: self.cache.reserve(step, request, 1))
                self.cache.preempt(request)
                self.seen["lost states"] += 1
            if request.num_computed_tokens == 0:
                self.look_up(name)
        left = request.num_tokens - request.num_computed_tokens
        length = min(length, left)
        if split and self.policy:
            total = request.num_tokens
            prompt_length = len(self.prompts[name].text)
            progress = PrefillProgress(request.num_computed_tokens, prompt_length, total, request.junction)
            length = split_prefill(progress, min(BUDGET, left), self.policy)
        if length == 0 or request.has_lost_state:
            return
        before = self._snapshot(request)
        if self.cache.reserve(step, request, length) is None:
            self.seen["exhausted"] += 1
            assert before == self._snapshot(request)

    def _is_stalled(self, name):
        return any(name in opened.step.request_ids for opened in self.open if opened.fate in (FAILS, WAITS))

    def settle(self, place):
        """Commit an open step if its worker is done, abort it if not."""
        if self.open:
            opened = self.open[place % len(self.open)]
            (self.abort if opened.fate in (FAILS, WAITS) else self.commit)(opened)

    def commit(self, opened):
        """Commit an open step, which must be the first of its requests."""
        earlier = self.open[: self.open.index(opened)]
        if any(opened.step.request_ids & other.step.request_ids for other in earlier):
            self._refused(lambda: self.cache.commit(opened.step, opened.declined))
            return
        expected = self.published()
        for chunk in opened.step.reservations:
            name = chunk.request.request_id
            arguments = self.prompts[name], self.junctions[name], name in opened.declined
            expected |= publications(self.config, self.retention, chunk, *arguments)
        self.cache.commit(opened.step, opened.declined)
        self.open.remove(opened)
        self.stored |= expected
        self.computed |= {self.prompts[c.request.request_id].prefix(c.end) for c in opened.step.reservations}
        assert self.published() == expected
        self.seen["commits"] += 1
        self.seen["out of order"] += bool(earlier)
        self._refused(lambda: self.cache.commit(opened.step))

    def abort(self, opened):
        """Abort an open step, which must be the last of its requests."""
        later = self.open[self.open.index(opened) + 1 :]
        if any(opened.step.request_ids & other.step.request_ids for other in later):
            self._refused(lambda: self.cache.abort(opened.step))
            return
        before = self.published()
        self.cache.abort(opened.step, has_run=opened.fate != WAITS)
        self.open.remove(opened)
        assert self.published() == before
        self.seen["aborts"] += 1

    def preempt(self, name):
        if self.requests[name].num_in_flight:
            self._refused(lambda: self.cache.preempt(self.requests[name]))
        else:
            self.cache.preempt(self.requests[name])
            self.seen["preemptions"] += 1

    def finish(self, name):
        if self.requests[name].num_in_flight:
            self._refused(lambda: self.cache.finish(self.requests[name]))
        else:
            self.cache.finish(self.requests.pop(name))

    def reset(self):
        """Forget all keys, which the cache refuses while a request holds blocks."""
        if any(request.num_computed_tokens for request in self.requests.values()):
            self._refused(self.cache.reset)
        else:
            self.cache.reset()
            self.stored, self.computed, self.forgotten = set(), set(), self.forgotten | self.computed
            assert self.published() == set()
            self.seen["resets"] += 1

    def close(self):
        """Settle all steps and finish all requests: nothing may be held then."""
        while self.open:
            last = self.open[-1]
            self.abort(last)
        for name in list(self.requests):
            self.finish(name)
        self.check()
        assert self.pool.num_available == self.pool.num_blocks - 1
        assert not self.pool.arrays.blocks["ref_count"].any()

    # What has to hold.

    def published(self):
        """(group, text) of every block that a key leads to, told from the blocks' contents."""
        found = set()
        for block in np.nonzero(self.pool.arrays.blocks["group"] >= 0)[0].tolist():
            group, content = self.worker.content[block]
            if isinstance(content, list):
                text = content[-1]
                lengths = range(len(text) - len(content) + 1, len(text) + 1)
                assert content == [text[:length] for length in lengths]
                content = text
            record = self.pool.arrays.blocks[block]
            assert (record["group"], record["key0"], record["key1"]) == (group, *self.key_of(content))
            assert (group, content) not in found
            found.add((group, content))
        return found

    def pending(self):
        """(group, text) of every block that open steps would publish."""
        found = set()
        steps = [opened.step for opened in self.open] + self.forming
        for chunk in (chunk for step in steps for chunk in step.reservations):
            name = chunk.request.request_id
            found |= publications(self.config, self.retention, chunk, self.prompts[name], self.junctions[name], False)
        return found

    def check(self):
        """Every block is accounted for, and every key leads to what it says."""
        self.pool.check_integrity()
        self.published()
        holds = Counter()
        for request in self.requests.values():
            holds.update(request.table.ravel().tolist())
        for opened in self.open:
            assert (self.pool.arrays.blocks["ref_count"][list(opened.read | opened.written)] > 0).all()
            for chunk in opened.step.reservations:
                holds.update(source for _, source, _ in chunk.copies)
        del holds[0]
        counts = self.pool.arrays.blocks["ref_count"]
        assert {block: int(counts[block]) for block in np.nonzero(counts)[0].tolist()} == dict(holds)
        for request in self.requests.values():
            if request.num_in_flight == 0:
                for group, row in zip(self.config.groups, request.table, strict=True):
                    held = set(np.nonzero(row)[0].tolist())
                    # A hit holds nothing for drafts yet.
                    of_hit = held_cols(replace(group, num_speculative_blocks=0), request.num_computed_tokens)
                    assert held in (held_cols(group, request.num_computed_tokens), of_hit)
                    self.seen["drafts"] += held > of_hit

    def _snapshot(self, request):
        arrays = (*self.pool.arrays, request.table)
        return [array.tobytes() for array in arrays], request.num_computed_tokens, request.num_in_flight

    def _refused(self, call):
        before = [array.tobytes() for array in self.pool.arrays]
        with pytest.raises(ArgumentError):
            call()
        assert before == [array.tobytes() for array in self.pool.arrays]
