"""What is installed, what the GPU needs, and the command that brings what is missing."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from numba_ckpt import __version__
from numba_ckpt._jit import SIMULATED
from numba_ckpt.replay.cuda_driver import CudaDriver, find_driver

__all__ = ["Diagnosis", "diagnose", "print_diagnosis"]

_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_CLI = ("rich", "matplotlib", "msgspec")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Facts about the installation, and what to do about the gaps.

    Attributes
    ----------
    facts : dict of str
        What was looked for, and what was found.
    advice : dict of str
        What is missing, and the command that installs it.
    """

    facts: dict[str, str]
    advice: dict[str, str]


def diagnose() -> Diagnosis:
    """Look at the Python packages and at the CUDA driver; imports neither CuPy nor numba-cuda."""
    driver = find_driver()
    cupy = next((f"{name} {found}" for name in _CUPY if (found := _version(name))), None)
    facts = {
        "numba-ckpt": __version__,
        "Python": f"{platform.python_version()} ({platform.system()} {platform.machine()})",
        **{name: _version(name) or "not installed" for name in ("numpy", "numba", "numba-cuda")},
        "CuPy": cupy or "not installed",
        "CUDA driver": f"runs CUDA up to {_dotted(driver)}" if driver else "not found",
        "device": "; ".join(driver.devices) if driver and driver.devices else "none",
        "CUDA simulator": "on (NUMBA_ENABLE_CUDASIM)" if SIMULATED else "off",
        **{name: _version(name) or "not installed" for name in _CLI},
    }
    return Diagnosis(facts, _advice(facts, driver))


def _advice(facts: dict[str, str], driver: CudaDriver | None) -> dict[str, str]:
    advice = {}
    extra = "cuda12" if driver and driver.version < (13, 0) else "cuda13"
    missing = [name for name in ("numba-cuda", "CuPy") if facts[name] == "not installed"]
    if missing:
        advice[f"{' and '.join(missing)} for --device cuda"] = f'pip install "numba-ckpt[{extra}]"'
    elif extra == "cuda12" and facts["CuPy"].startswith(_CUPY[0]):
        command = f'pip uninstall {_CUPY[0]} && pip install "numba-ckpt[cuda12]"'
        advice["a CuPy for CUDA 12, the newest that the driver runs"] = command
    if driver is None:
        advice["a CUDA driver"] = "see https://www.nvidia.com/drivers (on Ubuntu: sudo ubuntu-drivers install)"
    elif not driver.devices:
        advice["a GPU that the driver sees"] = "check it with: nvidia-smi (and CUDA_VISIBLE_DEVICES)"
    if SIMULATED:
        advice["a compiler for the device: numba simulates it"] = "unset NUMBA_ENABLE_CUDASIM"
    if any(facts[name] == "not installed" for name in _CLI):
        advice["packages of the command line"] = 'pip install "numba-ckpt[cli]"'
    return advice


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _dotted(driver: CudaDriver) -> str:
    return ".".join(map(str, driver.version))


def print_diagnosis() -> None:
    """Print the diagnosis as plain text: it must also work where rich is what is missing."""
    diagnosis = diagnose()
    for name, found in diagnosis.facts.items():
        print(f"{name:<16}{found}")
    for gap, command in diagnosis.advice.items():
        print(f"\nmissing: {gap}\n    {command}")
    if not diagnosis.advice:
        print("\nnothing is missing: --device cuda can be used")
