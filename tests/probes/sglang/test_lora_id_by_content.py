"""The id of an adapter named on the command line, which keys its cached states, follows the adapter's bytes."""

import shutil

import pytest
from sglang.srt.lora.lora_registry import LoRARef


@pytest.fixture
def adapter(tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(b"weights of the first")
    return folder


def identity(folder):
    return LoRARef.deterministic_id("summary", str(folder))


def test_the_same_adapter_keeps_its_id_over_a_restart(adapter):
    before = identity(adapter)
    copied = adapter.with_name("copy")
    shutil.copytree(adapter, copied)
    shutil.rmtree(adapter)
    copied.rename(adapter)
    assert identity(adapter) == before


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_one_changed_byte_is_another_adapter(adapter, name):
    before = identity(adapter)
    data = bytearray((adapter / name).read_bytes())
    data[-2] ^= 1
    (adapter / name).write_bytes(data)
    assert identity(adapter) != before


def test_a_file_more_or_under_another_name_is_another_adapter(adapter):
    before = identity(adapter)
    (adapter / "added.safetensors").write_bytes(b"")
    more = identity(adapter)
    (adapter / "added.safetensors").rename(adapter / "named.safetensors")
    assert len({before, more, identity(adapter)}) == 3


def test_what_is_no_folder_keeps_an_id():
    assert LoRARef.deterministic_id("a", "org/adapter") == LoRARef.deterministic_id("a", "org/adapter")
    assert LoRARef.deterministic_id("a", "org/adapter") != LoRARef.deterministic_id("b", "org/adapter")
