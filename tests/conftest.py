"""What every test shares: a clean environment, property tests that repeat, the folder of shared inputs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from sexpgpu.s3 import open_s3
from tests.s3_server import S3Server, s3_server

CHECKOUT = Path(__file__).resolve().parents[1]

NUM_FUZZ_CASES = int(os.environ.get("SEXPGPU_FUZZ", "200000"))

# A developer's own switches must not decide what a test sees; tests set what they need with monkeypatch.
for name in [name for name in os.environ if name.startswith("SEXPGPU_")]:
    del os.environ[name]
# Compiling takes longer than most tests; those of kernels ask for a compiler themselves.
os.environ["SEXPGPU_CPU"] = "interpreter"

settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the checkout: larger inputs that are not part of the repository."""
    folder = CHECKOUT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("there is no folder `shared` beside the checkout")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write texts that are compared word for word anew")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files and pages are written instead of compared."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(scope="session")
def s3_of_session() -> Iterator[S3Server]:
    """An S3 on this machine."""
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_of_session: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """An S3 on this machine, which this process and those that it starts find by themselves."""
    open_s3.cache_clear()
    for name, value in s3_of_session.environment.items():
        monkeypatch.setenv(name, value)
    return s3_of_session


@pytest.fixture(scope="session")
def num_fuzz_cases() -> int:
    """Cases of the longer test of damaged files: SEXPGPU_FUZZ, else 200,000."""
    return NUM_FUZZ_CASES
