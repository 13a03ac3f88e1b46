"""Every argument of every profile goes through the argument parser of the installed server."""

import argparse
import json

import pytest
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.server_args import ServerArgs

from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.argument_names import argument_names
from sm120.integration.serve.profile import load_profile, profile_names
from sm120.integration.serve.server_arguments import Machine, arguments


@pytest.fixture(scope="module")
def parser():
    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    return parser


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path))


def words(name, *settings):
    return arguments(load_profile(name, list(settings)), Machine(True, True), host="127.0.0.1", port=30000)


@pytest.mark.parametrize("name", profile_names())
def test_the_server_parses_the_whole_command_line(parser, name):
    line = words(name)
    # argparse takes abbreviations; a profile may not lean on them.
    unknown = [word for word in line if word.startswith("--") and word not in parser._option_string_actions]
    assert not unknown
    parsed = parser.parse_args(line)
    for key, value in load_profile(name).server.items():
        action = parser._option_string_actions[f"--{key}"]
        assert getattr(parsed, action.dest) == value, key


@pytest.mark.parametrize(
    "setting", ["decode-attention-backend=trtllm-mha", "gdn-mtp-cache-mode=recover", "page-size=x"]
)
def test_a_wrong_value_is_refused(parser, setting):
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser.parse_args(words("flash-next", setting))


def test_a_wrong_name_is_refused_before_the_server_is_asked():
    with pytest.raises(Refusal, match="nearest: gdn-mtp-cache-mode"):
        words("flash-next", "gdn-cache-mode=none")


def test_the_names_that_are_known_are_those_of_this_server(parser):
    options = {option[2:] for option in parser._option_string_actions if option.startswith("--")} - {"help"}
    assert argument_names() == options, "write them into server_arguments.txt again"


# As little of a checkpoint's config.json as the server's own classes accept, for 262,144 tokens.
TEXT = {"max_position_embeddings": 262144, "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 4}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 64}
ROPE = {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25}
ROPE |= {"mrope_section": [1, 1, 2], "mrope_interleaved": True}
TARGETS = {
    "qwen38-27b-dflash2": ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    "flash-next": ("qwen4_exp", "Qwen4ExpForConditionalGeneration"),
}


def checkpoint(folder, kind, architecture):
    text = {**TEXT, "model_type": f"{kind}_text", "rope_parameters": ROPE}
    folder.mkdir()
    config = {"model_type": kind, "architectures": [architecture], "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def draft_checkpoint(folder):
    folder.mkdir()
    config = {**TEXT, "model_type": "qwen3", "architectures": ["DFlashDraftModel"], "rope_theta": 10000000.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def model_config(line, path, option, **more):
    given = line[line.index(option) + 1] if option in line else "{}"
    length = int(line[line.index("--context-length") + 1])
    return ModelConfig(str(path), context_length=length, model_override_args=given, **more)


@pytest.mark.parametrize("name", TARGETS)
def test_the_server_accepts_the_context_and_keeps_the_rest_of_the_rope(name, tmp_path):
    path = checkpoint(tmp_path / "target", *TARGETS[name])
    found = model_config(words(name, f"paths.model={path}"), path, "--json-model-override-args")
    assert found.context_len == 524_288
    rope = found.hf_text_config.rope_parameters
    assert {**ROPE, "rope_type": "yarn"}.items() <= rope.items() and rope["factor"] == 2.0
    if name == "flash-next":
        assert found.hf_text_config.index_share_for_mtp_iteration is True
    # Without the override the very same server refuses the start, and the factor alone is no help.
    with pytest.raises(ValueError, match="context_length"):
        model_config(words(name), path, "--no-such-option")
    line = words(name, f"paths.model={path}")
    at = line.index("--json-model-override-args") + 1
    factor_alone = json.loads(line[at])
    del factor_alone["text_config"]["max_position_embeddings"]
    line[at] = json.dumps(factor_alone)
    with pytest.raises(ValueError, match="context_length"):
        model_config(line, path, "--json-model-override-args")


def test_the_server_accepts_the_context_of_the_draft(tmp_path):
    path = draft_checkpoint(tmp_path / "draft")
    line = words("qwen38-27b-dflash2", f"paths.draft={path}")
    option = "--speculative-draft-json-model-override-args"
    assert model_config(line, path, option, is_draft_model=True).context_len == 524_288
    with pytest.raises(ValueError, match="context_length"):
        model_config(line, path, "--no-such-option", is_draft_model=True)
