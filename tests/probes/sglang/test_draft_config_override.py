"""Probe of draft-config-override: the draft's HF config has overrides of its own, and every reader honours them."""

import argparse
import contextlib
import json

import pytest
from sglang.srt.arg_groups import boundary_reduction, speculative_hook
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative import spec_registry
from sglang.srt.speculative.dspark_components.dspark_config import read_draft_checkpoint_config
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo
from sglang.srt.utils import hf_transformers_utils

FLAG = "speculative_draft_json_model_override_args"
TARGET_OVERRIDE = {"initializer_range": 0.25}
DRAFT_OVERRIDE = {"num_hidden_layers": 1}


@pytest.fixture
def checkpoints(tmp_path):
    """Paths of a target and a draft, both two-layer Qwen3 configs without weights."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 320,
        "max_position_embeddings": 512,
    }
    paths = []
    for name in ("target", "draft"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        paths.append(str(folder))
    return paths


def make_args(target: str, draft: str | None, draft_json: str | None, algorithm: str = "STANDALONE", **extra):
    if draft_json is not None:
        extra[FLAG] = draft_json
    try:
        return ServerArgs(
            model_path=target,
            speculative_draft_model_path=draft,
            speculative_algorithm=algorithm,
            json_model_override_args=json.dumps(TARGET_OVERRIDE),
            device="cpu",
            **extra,
        )
    except TypeError as error:
        pytest.fail(f"the draft has no override argument: {error}")


def draft_config(args, draft: str):
    return ModelConfig.from_server_args(args, model_path=draft, is_draft_model=True).hf_config


def test_unset_falls_back_to_the_target(checkpoints):
    target, draft = checkpoints
    config = draft_config(make_args(target, draft, None), draft)
    assert (config.num_hidden_layers, config.initializer_range) == (2, 0.25)


def test_set_replaces_the_targets_overrides(checkpoints):
    target, draft = checkpoints
    args = make_args(target, draft, json.dumps(DRAFT_OVERRIDE))
    config = draft_config(args, draft)
    assert config.num_hidden_layers == 1
    assert config.initializer_range == 0.02, "replaced, not merged"
    of_target = ModelConfig.from_server_args(args).hf_config
    assert (of_target.num_hidden_layers, of_target.initializer_range) == (2, 0.25)


def test_empty_object_is_not_unset(checkpoints):
    target, draft = checkpoints
    config = draft_config(make_args(target, draft, "{}"), draft)
    assert (config.num_hidden_layers, config.initializer_range) == (2, 0.02)


@pytest.mark.parametrize("text", ["{", "[1]", "null", ""], ids=["cut", "list", "null", "empty"])
def test_anything_but_an_object_is_an_argument_error(checkpoints, text):
    args = make_args(*checkpoints, text)
    with pytest.raises(ValueError, match="--speculative-draft-json-model-override-args must be a JSON object"):
        speculative_hook.handle_speculative_decoding(args)


def test_the_flag_reaches_the_command_line():
    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    known, unknown = parser.parse_known_args(
        ["--model-path", "m", "--" + FLAG.replace("_", "-"), json.dumps(DRAFT_OVERRIDE)]
    )
    assert unknown == []
    assert getattr(known, FLAG) == json.dumps(DRAFT_OVERRIDE)


def iquest(args):
    class Target:
        architectures = ("IQuestQ1ForCausalLM",)

    class Config:
        hf_config = Target

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculative_hook, "model_config_of", lambda _: Config)
        speculative_hook._handle_iquest_q1_mtp_draft(args)


class AnyPlatform:
    """A platform on which DFLASH runs with every draft backend, whatever this machine is."""

    def is_out_of_tree(self):
        return True

    def supports_speculative_algorithm(self, algorithm):
        return True

    def supports_speculative_draft_attention_backend(self, algorithm, backend):
        return True

    def get_default_speculative_draft_attention_backend(self, algorithm):
        return "triton"


def dflash_block_size(args):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculative_hook, "current_platform", AnyPlatform())
        patch.setattr(speculative_hook, "_resolve_dflash_draft_attention_backend", lambda _: None)
        speculative_hook._handle_dflash(args)


def dflash_backend(args):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculative_hook, "current_platform", AnyPlatform())
        speculative_hook._resolve_dflash_draft_attention_backend(args)


READERS = {
    "alias": (speculative_hook.handle_speculative_decoding, {"algorithm": "NEXTN"}),
    "iquest": (iquest, {}),
    "dflash_block_size": (dflash_block_size, {"algorithm": "DFLASH"}),
    "dflash_backend": (
        dflash_backend,
        {"algorithm": "DFLASH", "speculative_draft_attention_backend": "trtllm_mha"},
    ),
    "dspark_checkpoint": (lambda args: read_draft_checkpoint_config(server_args=args), {"algorithm": "DSPARK"}),
    "boundary_reduction": (lambda args: boundary_reduction.resolve_boundary_reduction(resolved_view(args)), {}),
}


class Read(Exception):
    """Ends a reader once it has asked for the draft's config."""


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("given", [json.dumps(DRAFT_OVERRIDE), None], ids=["set", "unset"])
def test_every_reader_asks_with_the_drafts_overrides(checkpoints, monkeypatch, name, given):
    target, draft = checkpoints
    reader, extra = READERS[name]
    args = make_args(target, draft, given, **extra)
    asked = []

    def spy(model, *_, model_override_args=None, **__):
        if model == draft:
            asked.append(model_override_args)
            raise Read
        return real(model, *_, model_override_args=model_override_args, **__)

    real = hf_transformers_utils.get_config
    monkeypatch.setattr(hf_transformers_utils, "get_config", spy)
    # _handle_dflash swallows a failed read and goes on; what matters is what was asked for.
    with contextlib.suppress(Read):
        reader(args)
    assert asked, f"{name} did not read the draft's config"
    assert asked[0] == (TARGET_OVERRIDE if given is None else DRAFT_OVERRIDE)


@pytest.mark.parametrize("given", [None, "{}", json.dumps(DRAFT_OVERRIDE)], ids=["unset", "empty", "set"])
def test_an_algorithm_without_a_draft_keeps_its_hooks(checkpoints, monkeypatch, given):
    called = []

    class Draftless(CustomSpecAlgo):
        def handle_server_args(self, server_args):
            called.append("handle")

    monkeypatch.setattr(spec_registry, "_REGISTRY", {})
    SpeculativeAlgorithm.register(
        "DRAFTLESS", validate_server_args=lambda server_args: called.append("validate"), spec_class=Draftless
    )(lambda server_args: object)
    args = make_args(checkpoints[0], None, given, algorithm="DRAFTLESS")
    speculative_hook.handle_speculative_decoding(args)
    assert called == ["validate", "handle"]
