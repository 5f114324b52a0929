import platform

import numpy as np
import pytest

from numba_ckpt.replay import doctor
from numba_ckpt.replay.cuda_driver import CudaDriver, find_driver

EVERYTHING = {"numba-cuda": "0.30", "cupy-cuda13x": "14.2", "rich": "15", "matplotlib": "3.11", "msgspec": "0.23"}
DRIVER = CudaDriver((13, 0), ("A GPU (compute capability 9.0)",))


def _diagnose(monkeypatch, driver: CudaDriver | None, installed: dict[str, str]) -> doctor.Diagnosis:
    monkeypatch.setattr(doctor, "find_driver", lambda: driver)
    monkeypatch.setattr(doctor, "_version", installed.get)
    return doctor.diagnose()


def test_facts_are_those_of_this_process():
    facts = doctor.diagnose().facts
    assert facts["numpy"] == np.__version__
    assert facts["Python"].startswith(platform.python_version())
    assert {"numba", "numba-cuda", "CuPy", "CUDA driver", "device", "CUDA simulator"} <= set(facts)


def test_a_complete_installation_wants_nothing(monkeypatch, capsys):
    diagnosis = _diagnose(monkeypatch, DRIVER, EVERYTHING)
    assert diagnosis.advice == {}
    assert diagnosis.facts["CuPy"] == "cupy-cuda13x 14.2"
    assert diagnosis.facts["CUDA driver"] == "runs CUDA up to 13.0"
    doctor.print_diagnosis()
    assert "nothing is missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("driver", "missing", "command"),
    [
        (DRIVER, "cupy-cuda13x", 'pip install "numba-ckpt[cuda13]"'),
        (DRIVER, "numba-cuda", 'pip install "numba-ckpt[cuda13]"'),
        (CudaDriver((12, 8), DRIVER.devices), "cupy-cuda13x", 'pip install "numba-ckpt[cuda12]"'),
        (DRIVER, "rich", 'pip install "numba-ckpt[cli]"'),
        (None, "nothing", "nvidia.com/drivers"),
        (CudaDriver((13, 0), ()), "nothing", "nvidia-smi"),
    ],
)
def test_what_is_missing_comes_with_its_command(monkeypatch, capsys, driver, missing, command):
    installed = {name: version for name, version in EVERYTHING.items() if name != missing}
    [found] = _diagnose(monkeypatch, driver, installed).advice.values()
    assert command in found
    doctor.print_diagnosis()
    assert command in capsys.readouterr().out


def test_a_cupy_too_new_for_the_driver_is_named(monkeypatch):
    [(gap, command)] = _diagnose(monkeypatch, CudaDriver((12, 8), DRIVER.devices), EVERYTHING).advice.items()
    assert "CuPy for CUDA 12" in gap
    assert command == 'pip uninstall cupy-cuda13x && pip install "numba-ckpt[cuda12]"'


def test_an_older_cupy_on_a_new_driver_will_do(monkeypatch):
    installed = {name: version for name, version in EVERYTHING.items() if name != "cupy-cuda13x"}
    assert _diagnose(monkeypatch, DRIVER, installed | {"cupy-cuda12x": "13.6"}).advice == {}


def test_a_simulated_device_is_no_device(monkeypatch):
    monkeypatch.setattr(doctor, "SIMULATED", True)
    assert list(_diagnose(monkeypatch, DRIVER, EVERYTHING).advice.values()) == ["unset NUMBA_ENABLE_CUDASIM"]


def test_asking_for_a_driver_never_fails():
    driver = find_driver()
    assert driver is None or driver.version >= (1, 0)
