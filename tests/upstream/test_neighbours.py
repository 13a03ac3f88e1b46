"""A bump respects what the pinned releases of the other projects require, and says what the new one does."""

from __future__ import annotations

import zipfile

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.upstream import neighbours
from sm120.integration.upstream.neighbours import refuse_unwanted, requirements, wishes


def wheel(folder, *requires: str, name: str = "beta_dist-2.0-py3-none-any.whl", metadata: str | None = None):
    folder.mkdir(exist_ok=True)
    lines = ["Metadata-Version: 2.1", "Name: beta", "Version: 2.0", *(f"Requires-Dist: {text}" for text in requires)]
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("beta/core.py", "")
        archive.writestr(
            "beta_dist-2.0.dist-info/METADATA", "\n".join(lines) + "\n\ntext\n" if metadata is None else metadata
        )
    return folder / name


@pytest.fixture
def beside(mini, monkeypatch, tmp_path):
    """A second project, beta 2.0, whose wheel requires what the test says of alpha."""
    pin = mini.checkout.patches / "alpha" / "pin.toml"
    other = mini.checkout.patches / "beta"
    other.mkdir()
    text = pin.read_text().replace("alpha", "beta").replace('"1.0"', '"2.0"').replace("-1.0-", "-2.0-")
    (other / "pin.toml").write_text(text)
    (other / "series").write_text("")

    def require(*requires: str):
        file = wheel(tmp_path / "wheels", *requires)
        monkeypatch.setattr(neighbours, "fetch", lambda *_: file)
        return mini.checkout

    return require


@pytest.mark.parametrize(
    ("requires", "refused"),
    [
        (["alpha==1.0"], True),
        (["alpha[cu13]==1.0"], True),
        (["Alpha >=1.0,<1.1"], True),
        (["alpha>=1.0"], False),
        (["alpha==1.1"], False),
        (["alphabet==1.0"], False),
        (['alpha==1.0; extra == "gpu"'], False),
        (['alpha==1.0; python_version < "3"'], False),
        ([], False),
    ],
)
def test_a_version_that_another_pin_does_not_allow_is_refused(beside, requires, refused):
    checkout = beside(*requires)
    if refused:
        with pytest.raises(Refusal, match=r"\[bump-requires\].*so not 1\.1") as refusal:
            refuse_unwanted(checkout, "alpha", "1.1")
        assert "bump beta" in str(refusal.value)
    else:
        refuse_unwanted(checkout, "alpha", "1.1")


def test_what_the_new_release_requires_of_the_others_is_said_and_not_refused(beside, tmp_path):
    """Else two projects that require each other could never be bumped."""
    checkout = beside()
    new = wheel(tmp_path / "new", "beta==2.1", "numpy", name="alpha-1.1-py3-none-any.whl")
    distribution = "beta"
    assert wishes(checkout, "alpha", new) == [f"it requires {distribution}==2.1, and 2.0 is pinned: bump beta next"]
    assert wishes(checkout, "alpha", wheel(tmp_path / "fits", "beta==2.0")) == []


@pytest.mark.parametrize("text", ["Requires-Dist: what is this ==\n\n", None])
def test_metadata_that_does_not_read_is_refused(tmp_path, text):
    file = wheel(tmp_path, metadata=text) if text else tmp_path / "beta.whl"
    if text is None:
        file.write_bytes(b"no wheel")
    with pytest.raises(Refusal, match="artifact-corrupt"):
        list(requirements(file))
