"""The launcher's own compiler: the code it loads is the code that the other tests read."""

import numpy as np
import pytest

from numba_ckpt._launcher import Launcher, compile_code
from numba_ckpt.errors import DeviceError
from numba_ckpt.kernels._launch import THREADS_PER_BLOCK
from numba_ckpt.kernels._registry import OPS
from tests.compile.compile_kernels import compile_kernel
from tests.compile.signatures import SIGNATURES
from tests.test_launcher import FakeArray, FakeDriver

SIGNATURE = next(signature for signature in SIGNATURES if signature.op == "slot_mapping")


def kind_of(text):
    """The launcher's kind of an argument that a signature spells."""
    name, _, ndim = text.rstrip("]").partition("[")
    return (np.dtype(name).char, int(ndim)) if ndim else None


def test_it_compiles_what_is_launched():
    kinds = tuple(map(kind_of, SIGNATURE.arguments))
    code = compile_code(OPS["slot_mapping"].kernel, kinds, (9, 0), THREADS_PER_BLOCK)
    entry = code.partition(".visible .entry")[2]
    assert entry == compile_kernel(SIGNATURE, "sm_90")[0].ptx.partition(".visible .entry")[2]
    assert entry.partition(")")[0].count(".param") == len(kinds)


def test_what_is_loaded_has_the_kernels_name(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CKPT_CACHE_DIR", str(tmp_path))
    driver = FakeDriver()
    monkeypatch.setattr(driver, "launch", lambda function, *_: driver.launches.append(function))
    tokens = FakeArray(4096, (3,), (4,)), FakeArray(8192, (5,), (4,))
    Launcher(driver).launch(OPS["stage_logits_indices"].kernel, (1,), THREADS_PER_BLOCK, tokens)
    ((name, code),) = driver.loaded
    assert f".entry {name}(" in code
    assert driver.launches == [code]


def test_what_does_not_compile_is_named():
    kinds = (("f", 1),) * len(SIGNATURE.arguments)
    with pytest.raises(DeviceError, match=r"_slot_mapping_kernel: could not compile it for sm_90"):
        compile_code(OPS["slot_mapping"].kernel, kinds, (9, 0), THREADS_PER_BLOCK)
