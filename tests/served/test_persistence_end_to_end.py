"""Tiny models on the patched runtime: every tier, restart, kill -9, other namespace and damage give equal tokens."""

import pytest

from sm120.integration.common.storage import probe
from sm120.integration.prove import recipes
from sm120.integration.prove.persistence.end_to_end import EndToEnd, failures, run_setup

pytestmark = [pytest.mark.served, pytest.mark.slow, pytest.mark.timeout(900)]


# Interpreted kernels make the hybrid's four servers cost five minutes: every run takes two of them, the long one all.
@pytest.mark.parametrize(
    ("name", "short"),
    [
        pytest.param("dense", False, id="dense"),
        pytest.param("hybrid", True, id="hybrid"),
        pytest.param("hybrid", False, id="hybrid-whole", marks=pytest.mark.long),
    ],
)
def test_tokens_are_equal_whatever_tier_they_come_from(name, short, runtime, work):
    lines = run_setup(name, runtime, work, damage=False, short=short)
    assert failures(lines) == []
    assert len({line.step for line in lines}) == (5 if short else 9)
    restored = [line for line in lines if line.step.startswith("storage hit after restart")]
    assert all(line.recomputed < line.prompt_tokens for line in restored)


@pytest.mark.long
def test_states_with_side_states_of_an_odd_size_come_back_from_storage(runtime, tmp_path, ple_model):
    """PLE's window and n-gram context are part of the page: its size is no multiple of a block, and O_DIRECT is on."""
    storage = probe(tmp_path / "namespace-a")
    lines = EndToEnd(
        runtime,
        ple_model.folder,
        {**recipes.HYBRID_PAGED, **recipes.hicache(storage, page_size=64)},
        storage,
        tmp_path,
        prompt_tokens=130,
        pressure=4,
        environment=ple_model.environment,
        hooks=ple_model.hooks,
    ).run(damage=False)
    assert failures(lines) == []
    sizes = {path.stat().st_size for path in storage.folder.glob("[0-9a-f][0-9a-f]/*_mamba")}
    assert len(sizes) == 1 and sizes.pop() % 4096 == 0
