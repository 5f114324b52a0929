"""Compiled code on disk: found again, rebuilt when damaged, and whole however many write it."""

import multiprocessing

import pytest

from numba_ckpt import _code_cache
from numba_ckpt._code_cache import cache_folder, cached_code


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CKPT_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def fail():
    raise AssertionError("it is on disk")


def test_code_is_made_once(folder):
    assert cached_code(("a", 1), lambda: "// é\n.entry\n") == "// é\n.entry\n"
    assert cached_code(("a", 1), fail) == "// é\n.entry\n"
    assert cached_code(("a", 2), lambda: "other") == "other"
    assert len(list(folder.iterdir())) == 2


def test_other_compilers_and_sources_have_other_entries(monkeypatch):
    cached_code("a", lambda: "old")
    assert len(_code_cache.stamp().split()[-1]) == 64
    monkeypatch.setattr(_code_cache, "stamp", lambda: "another version")
    assert cached_code("a", lambda: "new") == "new"


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", b"no digest\n.entry", None])
def test_a_damaged_entry_is_made_anew(folder, damage):
    cached_code("a", lambda: "right")
    (entry,) = folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] if damage is None else damage)
    assert cached_code("a", lambda: "right") == "right"
    assert cached_code("a", fail) == "right"


def test_without_a_folder_to_write_to_code_is_made_each_time(folder):
    folder.write_text("a file")
    made = iter(("one", "two"))
    assert [cached_code("a", lambda: next(made)) for _ in range(2)] == ["one", "two"]


def test_a_failure_leaves_nothing_behind(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_code_cache.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cached_code("a", lambda: "code")
    assert list(folder.iterdir()) == []


def _make_many(number):
    return [cached_code(index, lambda index=index: f"{index}" * 10_000) == f"{index}" * 10_000 for index in range(20)]


def test_processes_that_start_at_once_find_whole_entries(folder):
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert all(all(right) for right in pool.map(_make_many, range(8)))
    assert len(list(folder.iterdir())) == 20


def test_the_users_folder_of_caches_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CKPT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "numba_ckpt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "numba_ckpt"
