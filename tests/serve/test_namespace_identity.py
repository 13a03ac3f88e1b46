"""Namespaces: what enters the identity, manifests that fail closed, a collection that spares the living."""

import fcntl
import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.namespace import namespace_store as store
from sm120.integration.serve.namespace.checkpoint import HashCache, read_checkpoint
from sm120.integration.serve.namespace.namespace_commands import app
from sm120.integration.serve.namespace.namespace_identity import (
    differences,
    directory_name,
    identity,
    parse_serving,
)

from ..runtime_records import written

RUNTIME = "ab" * 32
FIELDS = {
    "dtype": "bfloat16",
    "page_size": "64",
    "hicache_mem_layout": "page_first_direct",
    "prefill_attention_backend": "triton",
    "decode_attention_backend": "trtllm_mha",
    "torch_version": "2.14.1",
    "capability": "12.0",
}


def fields(**changes: str) -> list[str]:
    return [f"{name}={value}" for name, value in {**FIELDS, **changes}.items()]


def write_checkpoint(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8}))
    names = ["model-1.safetensors", "model-2.safetensors"]
    for number, name in enumerate(names):
        header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
        (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes([seed, number, 0, 0]))
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def read(folder: Path, cache: Path, **options):
    return read_checkpoint(folder, HashCache(cache), **options)


def derived(tmp_path: Path, *, checkpoint: Path | None = None, **changes: str) -> dict:
    folder = checkpoint or tmp_path / "model"
    if not folder.exists():
        write_checkpoint(folder)
    return identity({"target": read(folder, tmp_path / "hashes.json")}, RUNTIME, parse_serving(fields(**changes)))


def test_a_copy_elsewhere_and_later_is_the_same(tmp_path):
    original = derived(tmp_path)
    copy = shutil.copytree(tmp_path / "model", tmp_path / "elsewhere" / "other-name")
    for file in copy.iterdir():
        os.utime(file, (1, 1))
    assert derived(tmp_path, checkpoint=copy) == original


@pytest.mark.parametrize("name", ["config.json", "model-2.safetensors", "model.safetensors.index.json"])
def test_every_changed_byte_of_a_checkpoint_is_another_identity(tmp_path, name):
    original = derived(tmp_path)
    file = tmp_path / "model" / name
    data = bytearray(file.read_bytes())
    data[-1] ^= 0x20 if name.endswith("safetensors") else 0
    file.write_bytes(data + (b"" if name.endswith("safetensors") else b" "))
    assert derived(tmp_path) != original


@pytest.mark.parametrize(
    "field, value",
    [
        ("tp_size", "2"),
        ("dtype", "float16"),
        ("kv_cache_dtype", "fp8_e4m3"),
        ("mamba_ssm_dtype", "float32"),
        ("page_size", "32"),
        ("page_padding", "512"),
        ("hicache_mem_layout", "layer_first"),
        ("use_direct_io", "false"),
        ("speculative_num_draft_tokens", "4"),
        ("decode_attention_backend", "triton"),
        ("mamba_radix_cache_strategy", "extra_buffer"),
        ("gdn_mtp_cache_mode", "full"),
        ("torch_version", "2.13.0"),
        ("capability", "12.1"),
    ],
)
def test_every_setting_is_another_identity_and_is_named(tmp_path, field, value):
    found = differences(derived(tmp_path), derived(tmp_path, **{field: value}))
    assert [name for name, _, _ in found] == [f"serving.{field}"]


@pytest.mark.parametrize(
    "given, message",
    [
        (["page_size"], "is not NAME=VALUE"),
        (["Page=1"], "is not NAME=VALUE"),
        ([*fields(), "dtype=float16"], "given twice"),
        (fields(model_path="/m"), "not where it lies"),
        (fields(hicache_size="4"), "capacity does not enter"),
        (fields(pagesize="4"), "unknown field pagesize"),
        (fields(page_size="sixty"), "must be a whole number"),
        (fields(page_size="0"), "greater than or equal to 1"),
        (fields(use_direct_io="1"), "must be true or false"),
        (fields(capability="sm120"), "pattern"),
        ([field for field in fields() if not field.startswith("dtype")], "dtype: Field required"),
    ],
)
def test_bad_settings_are_refused(given, message):
    with pytest.raises(Refusal, match=message):
        parse_serving(given)


def test_bad_checkpoints_are_refused(tmp_path):
    cache = tmp_path / "hashes.json"
    with pytest.raises(Refusal, match=r"no config\.json"):
        read(tmp_path, cache)
    model = write_checkpoint(tmp_path / "model")
    (model / "model-2.safetensors").unlink()
    with pytest.raises(Refusal, match=r"lists model-2\.safetensors, which is not there"):
        read(model, cache)
    (model / "model-2.safetensors").write_bytes(b"<html>not found</html>")
    with pytest.raises(Refusal, match="not a safetensors file"):
        read(model, cache)
    (model / "model-2.safetensors").write_bytes((100).to_bytes(8, "little") + b"{}")
    with pytest.raises(Refusal, match="cut short"):
        read(model, cache)
    (model / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(Refusal, match="not a shard index"):
        read(model, cache)


def test_download_record_gives_the_same_hash_and_only_while_it_is_fresh(tmp_path):
    model, cache = write_checkpoint(tmp_path / "model"), tmp_path / "hashes.json"
    true = read(model, cache).shards["model-1.safetensors"].content
    assert true == hashlib.sha256((model / "model-1.safetensors").read_bytes()).hexdigest()
    record = model / ".cache" / "huggingface" / "download" / "model-1.safetensors.metadata"
    record.parent.mkdir(parents=True)
    for etag, age, trusted in (("cd" * 32, 0, True), ("cd" * 32, 3600, False), ("not-a-hash", 0, False)):
        record.write_text(f"{'0' * 40}\n{etag}\n{time.time() - age}\n")
        found = read(model, cache).shards["model-1.safetensors"].content
        assert (found == "cd" * 32) == trusted and (found == true) != trusted
    record.write_text(f"{'0' * 40}\n{'cd' * 32}\n{time.time()}\n")
    assert read(model, cache, trust_download=False).shards["model-1.safetensors"].content == true


def test_hashing_resumes_with_the_shards_that_are_done(tmp_path, monkeypatch):
    from sm120.integration.serve.namespace import checkpoint

    model, cache, hashed = write_checkpoint(tmp_path / "model"), tmp_path / "hashes.json", []
    real = checkpoint.sha256_file

    def interrupted(file, *rest):
        if file.name == "model-2.safetensors":
            raise KeyboardInterrupt
        hashed.append(file.name)
        return real(file, *rest)

    monkeypatch.setattr(checkpoint, "sha256_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(model, cache, workers=1)
    assert hashed == ["model-1.safetensors"]
    monkeypatch.setattr(checkpoint, "sha256_file", lambda file, *rest: (hashed.append(file.name), real(file, *rest))[1])
    seen = []
    result = read(model, cache, workers=1, progress=lambda done, total: seen.append((done, total)))
    assert hashed.count("model-1.safetensors") == 1 and hashed.count("model-2.safetensors") == 1
    assert seen[-1][0] == seen[-1][1] == sum(shard.size for shard in result.shards.values())
    # A file that changed is hashed again.
    (model / "model-1.safetensors").write_bytes((model / "model-2.safetensors").read_bytes())
    assert read(model, cache).shards["model-1.safetensors"].content == result.shards["model-2.safetensors"].content


def test_manifest_is_written_once_and_mismatch_fails_closed(tmp_path):
    root, wanted = tmp_path / "root", derived(tmp_path)
    root.mkdir()
    namespace = store.open_namespace(root, "My Model", wanted)
    assert namespace.folder.name == directory_name("My Model", wanted) and namespace.pages.is_dir()
    written = (namespace.folder / store.MANIFEST).read_bytes()
    assert store.open_namespace(root, "My Model", wanted).identity == wanted
    assert (namespace.folder / store.MANIFEST).read_bytes() == written
    other = derived(tmp_path, tp_size="2")
    assert store.open_namespace(root, "My Model", other).folder != namespace.folder
    assert not list(root.glob(".creating-*"))

    foreign = (store.open_namespace(root, "My Model", other).folder / store.MANIFEST).read_text()
    for damage in ("", "{", "[]", json.dumps({"identity": wanted}), foreign, written.decode().replace("12.0", "12.1")):
        (namespace.folder / store.MANIFEST).write_text(damage)
        with pytest.raises(Refusal, match="namespace-manifest"):
            store.open_namespace(root, "My Model", wanted)
    (namespace.folder / store.MANIFEST).unlink()
    with pytest.raises(Refusal, match="no readable manifest"):
        store.open_namespace(root, "My Model", wanted)


def test_two_processes_create_one_namespace(tmp_path):
    root, wanted = tmp_path / "root", derived(tmp_path)
    root.mkdir()
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if store.open_namespace(root, "m", wanted).identity == wanted else 1
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 8
    assert [entry.name for entry in root.iterdir()] == [directory_name("m", wanted)]


def make_pile(tmp_path: Path, count: int = 4) -> tuple[Path, list[store.Namespace]]:
    """Namespaces of one label, the first used longest ago, each with one page."""
    root = tmp_path / "root"
    root.mkdir()
    pile = []
    for number in range(count):
        namespace = store.open_namespace(root, "m", derived(tmp_path, page_size=str(1 << number)))
        (namespace.pages / "00").mkdir()
        (namespace.pages / "00" / "page").write_bytes(bytes(8192))
        os.utime(namespace.folder / store.MANIFEST, (number + 1, number + 1))
        pile.append(store.read_namespace(namespace.folder))
    return root, pile


def test_collection_keeps_the_newest_and_starts_dry(tmp_path):
    root, pile = make_pile(tmp_path)
    (root / "photographs").mkdir()
    verdicts = store.collect(root, 2, delete=False)
    assert [verdict for _, verdict in verdicts] == ["kept", "kept", "would delete", "would delete"]
    assert all(namespace.folder.is_dir() for namespace in pile)
    assert [verdict for _, verdict in store.collect(root, 2, delete=True)] == ["kept", "kept", "deleted", "deleted"]
    assert [namespace.folder.is_dir() for namespace in pile] == [False, False, True, True]
    assert (root / "photographs").is_dir() and not list(root.glob(".deleting-*"))
    with pytest.raises(Refusal, match="at least 1"):
        store.collect(root, 0, delete=True)


@pytest.mark.parametrize("by", ["server", "holder"])
def test_collection_spares_the_active_one(tmp_path, by):
    root, pile = make_pile(tmp_path)
    oldest = pile[0]
    if by == "server":
        staging = oldest.pages / ".staging" / "one"
        staging.mkdir(parents=True)
        fd = os.open(staging, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert oldest.active
        verdicts = store.collect(root, 1, delete=True)
        os.close(fd)
    else:
        with store.hold(oldest), store.hold(oldest):
            assert oldest.active
            verdicts = store.collect(root, 1, delete=True)
    assert {n.folder: v for n, v in verdicts}[oldest.folder] == "active" and oldest.folder.is_dir()
    assert not oldest.active
    store.collect(root, 1, delete=True)
    assert not oldest.folder.exists()


def test_command_line(tmp_path):
    model, root = write_checkpoint(tmp_path / "My-Model"), tmp_path / "root"
    root.mkdir()
    record = written(tmp_path, identity=RUNTIME)
    run = CliRunner().invoke
    common = ["derive", "--root", str(root), "--model", str(model), "--runtime", str(record)]
    given = [part for field in fields() for part in ("--field", field)]
    dry = run(app, [*common, *given, "--dry-run"])
    assert dry.exit_code == 0 and not list(root.glob("my_model*")), dry.output
    one = run(app, [*common, *given])
    assert one.exit_code == 0 and one.stdout == dry.stdout, one.output
    other = run(app, [*common, *given, "--field", "tp_size=2"])
    explained = run(app, ["explain", str(Path(one.stdout.strip()).parent), str(Path(other.stdout.strip()).parent)])
    assert explained.exit_code == 1 and "serving.tp_size" in explained.stdout
    assert run(app, ["explain", *[str(Path(one.stdout.strip()).parent)] * 2]).stdout == "the same identity\n"
    assert "my_model_" in run(app, ["list", "--root", str(root)]).stdout
    assert "0.00" in run(app, ["du", "--root", str(root)]).stdout
    assert "would delete" in run(app, ["gc", "--root", str(root), "--keep", "1"]).stdout
    assert len(list(root.glob("my_model*"))) == 2
    assert "deleted" in run(app, ["gc", "--root", str(root), "--keep", "1", "--delete"]).stdout
    assert len(list(root.glob("my_model*"))) == 1
    record.write_text("{}")
    refused = run(app, [*common, *given])
    assert isinstance(refused.exception, Refusal) and "runtime-record" in str(refused.exception)


def test_derive_reads_the_environment_that_the_server_will_have(tmp_path, monkeypatch):
    model, record = write_checkpoint(tmp_path / "model"), written(tmp_path, identity=RUNTIME)

    def folder(*more: str) -> str:
        line = ["derive", "--root", str(tmp_path), "--model", str(model), "--runtime", str(record), "--dry-run"]
        given = [part for field in fields() for part in ("--field", field)]
        return CliRunner().invoke(app, [*line, *given, *more]).stdout

    plain = folder()
    monkeypatch.setenv("SGLANG_MAMBA_CONV_DTYPE", "float16")
    exported = folder()
    assert exported != plain and folder("--field", "mamba_conv_dtype=auto") == plain, "what is given wins"
    monkeypatch.delenv("SGLANG_MAMBA_CONV_DTYPE")
    assert folder("--field", "mamba_conv_dtype=float16") == exported


def test_another_name_of_the_same_checkpoint_stores_nothing_twice(tmp_path):
    wanted = derived(tmp_path)
    first = store.open_namespace(tmp_path / "root", "flash-next", wanted)
    again = store.open_namespace(tmp_path / "root", "the model's other name", wanted)
    other = store.open_namespace(tmp_path / "root", "flash-next", derived(tmp_path, dtype="float16"))
    assert again.pages == first.pages != other.pages
    (first.folder / store.MANIFEST).write_text("{}")
    assert store.open_namespace(tmp_path / "root", "third", wanted).folder != first.folder
