"""What every served test starts from."""

from pathlib import Path

import pytest

from sm120.integration.prove.runtime import Runtime


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    """The runtime that SM120_RUNTIME names; a served test without one fails, it does not skip."""
    try:
        return Runtime.from_environment()
    except ValueError as error:
        pytest.fail(f"served tests need a built runtime: {error}; `make runtime` builds build/runtime", pytrace=False)


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, storage and logs of this session's proofs; the models are made once."""
    return tmp_path_factory.mktemp("prove")
