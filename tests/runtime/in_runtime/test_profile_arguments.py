"""Every argument of every profile goes through the argument parser of the installed server."""

import argparse

import pytest
from sglang.srt.server_args import ServerArgs

from sm120.integration.profiles import load_profile, profile_names
from sm120.integration.profiles.command import Machine, arguments


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


def test_a_wrong_name_is_refused(parser):
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser.parse_args(words("flash-next", "gdn-cache-mode=none"))
