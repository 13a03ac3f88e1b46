"""Weights by where the engine puts them, and the published pools from folders of the real sizes."""

import importlib.util
import json
from pathlib import Path

import pytest

from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.capacity import GIB, capacity
from sm120.integration.serve.host_memory import host_need
from sm120.integration.serve.placement import budget, checkpoint_weights
from sm120.integration.serve.planner.weights import Loading, Tensor, Weights, place_of, weights_of
from sm120.integration.serve.profile import load_profile

from .published_tokens import MIB

_SPEC = importlib.util.spec_from_file_location("checkpoint_folders", Path(__file__).with_name("checkpoint_folders.py"))
folders = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(folders)

FREE = 96_609 * MIB


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path / "config"))


def weights(folder, *settings):
    return checkpoint_weights(load_profile("flash-next", [f"paths.model={folder}", *settings]))


def test_the_table_is_host_memory_and_the_rest_lies_on_the_gpu(tmp_path):
    found = weights(folders.flash_next(tmp_path / "m"))
    assert found.host == folders.TABLE and found.on_gpu == folders.FLASH_NEXT - folders.TABLE
    assert found.draft == int(4.3 * GIB) and found.skipped == 256


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (["ple-offload-embedding=false"], "gpu"),
        (["dtype=float16"], "gpu"),
        (["ple-offload-backend=file"], "disk"),
        (["dtype=bfloat16"], "host"),
    ],
    ids=["told", "another_dtype", "file", "bfloat16"],
)
def test_the_table_follows_the_settings(tmp_path, settings, where):
    found = weights(folders.flash_next(tmp_path / "m"), *settings)
    sizes = {"gpu": found.gpu, "host": found.host, "disk": found.disk}
    rest = folders.FLASH_NEXT - folders.TABLE - found.draft
    assert sizes == {"gpu": rest, "host": 0, "disk": 0} | {where: folders.TABLE + (rest if where == "gpu" else 0)}


def test_a_bfloat16_table_is_twice_the_fp8_one_unless_it_is_kept_as_fp8(tmp_path):
    plain = folders.flash_next(tmp_path / "plain", table_dtype="BF16")
    assert weights(plain).host == 2 * folders.TABLE
    kept = folders.flash_next(
        tmp_path / "kept", table_dtype="BF16", text_config={"ple_embedding_dtype": "float8_e4m3fn"}
    )
    assert weights(kept).host == folders.TABLE
    profile = load_profile("flash-next", [f"paths.model={plain}"])
    assert (
        host_need(profile, weights(plain), None).bytes - host_need(profile, weights(kept), None).bytes == folders.TABLE
    )


def test_without_speculation_the_mtp_layer_is_not_loaded(tmp_path):
    folder = folders.flash_next(tmp_path / "m")
    found = weights(folder, "speculative-algorithm=", "speculative-num-draft-tokens=")
    assert found.draft == 0 and found.skipped == int(4.3 * GIB) + 256


def test_two_cards_share_the_weights_and_not_the_table(tmp_path):
    folder = folders.flash_next(tmp_path / "m")
    one, two = weights(folder), weights(folder, "tp-size=2")
    assert (two.gpu, two.host) == (one.gpu // 2, one.host)


@pytest.mark.parametrize(
    ("name", "loading", "place", "size"),
    [
        ("model.layers.1.rotary_emb.inv_freq", Loading(), "skipped", 800),
        ("model.visual.blocks.0.attn.qkv.weight", Loading(vision=False), "skipped", 800),
        ("model.visual.blocks.0.attn.qkv.weight", Loading(), "gpu", 800),
        ("mtp.fc.weight", Loading(draft_head=True), "draft", 800),
        ("mtp.fc.weight", Loading(), "skipped", 800),
        ("model.layers.0.self_attn.q_proj.weight", Loading(online_fp8=True), "gpu", 400),
        ("model.embed_tokens.weight", Loading(online_fp8=True), "gpu", 800),
        ("model.layers.0.ple.ple_embedding.token_lookup", Loading(), "skipped", 800),
        ("model.layers.0.ple.ple_embedding.layer_multipliers", Loading(), "gpu", 800),
    ],
)
def test_a_tensor_has_one_place(name, loading, place, size):
    assert place_of(Tensor(name, "BF16", (20, 20), 800), loading) == (place, size)


def test_only_shards_of_the_index_count(tmp_path):
    folder = folders.flash_next(tmp_path / "m")
    before = weights(folder)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    folders.shard(folder / "extra.safetensors", {"w": ("U8", [GIB])})
    assert weights(folder).gpu == before.gpu + GIB
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(enumerate(names))}))
    assert weights(folder) == before
    twice = tmp_path / "twice"
    twice.mkdir()
    for name in ("consolidated", "model"):
        folders.shard(twice / f"{name}.safetensors", {"w": ("U8", [100])})
    assert weights_of(twice, Loading()) == Weights(gpu=100)


def test_a_folder_that_is_not_whole_is_refused(tmp_path):
    folder = folders.flash_next(tmp_path / "m")
    file = folder / "model-00001-of-00002.safetensors"
    with file.open("r+b") as handle:
        handle.truncate(GIB)
    with pytest.raises(Refusal, match=r"\[plan-weights\].*ends before"):
        weights(folder)
    file.write_bytes(b"version https://git-lfs")
    with pytest.raises(Refusal, match="not a safetensors file"):
        weights(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(Refusal, match="gone.safetensors, which is not there"):
        weights(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refusal, match=r"no \*.safetensors"):
        weights(tmp_path / "empty")


# The published 27B starts had the draft's weights as its checkpoint has them, in bfloat16.
BF16_DRAFT = "speculative-draft-model-quantization="
PUBLISHED = [
    ("flash-next", [], 824_384),
    ("qwen38-27b-dflash2", [BF16_DRAFT], 1_118_784),
    (
        "qwen38-27b-dflash2",
        [
            BF16_DRAFT,
            "mem-fraction-static=0.94",
            "max-mamba-cache-size=16",
            "mamba-radix-cache-strategy=extra_buffer_lazy",
        ],
        1_194_496,
    ),
]


@pytest.mark.parametrize(("name", "settings", "published"), PUBLISHED)
def test_published_pools_from_folders_of_the_real_sizes(tmp_path, name, settings, published):
    paths = [f"paths.model={folders.flash_next(tmp_path / 'target')}"]
    if name != "flash-next":
        paths = [
            f"paths.model={folders.qwen_27b(tmp_path / 'dense')}",
            f"paths.draft={folders.dflash2(tmp_path / 'draft')}",
        ]
    profile = load_profile(name, [*paths, *settings])
    plan = budget(profile, FREE, checkpoint_weights(profile).on_gpu)
    found = capacity(profile, plan.bytes).tokens
    print(f"{name} {settings}: {found:,} of {published:,}, {found / published - 1:+.2%}")
    assert abs(found / published - 1) < 0.02 and plan.short < 0


def test_a_bfloat16_draft_that_is_loaded_as_fp8_takes_half(tmp_path):
    paths = [
        f"paths.{role}={make(tmp_path / role)}"
        for role, make in (("model", folders.qwen_27b), ("draft", folders.dflash2))
    ]
    plain = checkpoint_weights(load_profile("qwen38-27b-dflash2", [*paths, BF16_DRAFT]))
    online = checkpoint_weights(load_profile("qwen38-27b-dflash2", paths))
    fc = 2 * 5120 * 5 * 5120
    assert plain.gpu == online.gpu and online.draft == fc + (plain.draft - fc) // 2
    assert plain.skipped == online.skipped == 850_000_000  # the MTP layer, which DFLASH does not use


def test_what_is_resident_beside_weights_takes_tokens(tmp_path):
    profile = load_profile("flash-next")
    plan = budget(profile, FREE, 78 * GIB)
    sizes = {part.name: part.bytes for part in plan.parts}
    assert sizes["rotary table"] == 524_288 * 64 * 4 and sizes["vision cache"] == 100 * MIB
    assert plan.bytes == int(FREE * 0.97) - 78 * GIB - sum(sizes.values())
    text_only = budget(load_profile("flash-next", ["language-model-only=true"]), FREE, 78 * GIB)
    assert text_only.bytes == plan.bytes + 100 * MIB
    assert budget(profile, FREE, 78 * GIB, fraction=0.995).short > 0
