"""Every manifest says the same way that it is missing, no TOML, or wrong in a field."""

import pytest

from sm120.integration.common.checkout import Checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.series.overlay import load_manifest
from sm120.integration.series.pin import load_pin
from sm120.integration.upstream.ledger import load_ledger
from sm120.integration.upstream.releases import load_releases

READERS = {
    "pin": (load_pin, "pin.toml"),
    "kernel": (load_manifest, "kernel.toml"),
    "releases": (load_releases, "releases.toml"),
    "ledger": (lambda folder: load_ledger(Checkout(folder)), "patches/ledger.toml"),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (None, "missing", ""),
        (b"a = \n", "syntax", "line 1"),
        (b'a = "\xff"\n', "syntax", "invalid start byte"),
        (b"unheard_of = 1\n", "field", ":"),
    ],
    ids=["missing", "no_toml", "not_utf8", "wrong_field"],
)
def test_a_bad_manifest_is_named(tmp_path, kind, content, code, says):
    read, name = READERS[kind]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Refusal) as refused:
        read(tmp_path)
    assert refused.value.code == f"{kind}-{code}"
    assert refused.value.path == tmp_path / name
    assert says in refused.value.what
