"""Every argument of the pinned server is classified, and what is not kept out makes another namespace."""

import ast
import json
import tomllib
from pathlib import Path

import pytest

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.namespace.arguments import TABLE, entering, given_arguments, kept_out
from sm120.integration.serve.namespace.namespace_identity import FIELDS, parse_serving

SERVING = [
    "dtype=bfloat16",
    "page_size=64",
    "hicache_mem_layout=page_first",
    "prefill_attention_backend=triton",
    "decode_attention_backend=triton",
    "torch_version=2.14.1",
    "capability=12.0",
]


def declared(tree: Path) -> set[str]:
    """Every argument that SGLang's tables declare, read from their source."""
    names = set()
    for file in (tree / "sglang" / "srt" / "arg_groups" / "fields").glob("*.py"):
        for group in ast.parse(file.read_text()).body:
            if isinstance(group, ast.ClassDef):
                names |= {ast.unparse(part.target) for part in group.body if isinstance(part, ast.AnnAssign)}
    return names


def test_every_argument_of_the_pin_is_classified_once():
    """A bump that adds an argument fails here until somebody has decided whether it can change a page's bytes."""
    checkout = find_checkout(Path(__file__))
    pinned = declared(pristine_of(checkout, load_recipe(checkout, "sglang")))
    assert len(pinned) > 500
    table = tomllib.loads(TABLE.read_text())
    listed = [name for part in table["kept_out"] for name in part["names"]]
    listed += [name for names in table["enters"].values() for name in names]
    assert {"unclassified": sorted(pinned - set(listed)), "gone": sorted(set(listed) - pinned)} == {
        "unclassified": [],
        "gone": [],
    }
    assert len(listed) == len(set(listed))


def test_every_reason_is_said():
    assert all(len(why) > 15 for why in kept_out().values())
    assert not kept_out().keys() & entering()


REPORTED = [
    "load_format", "enable_lora", "quantization_param_path", "model_impl", "revision", "swa_full_tokens_ratio",
    "linear_attn_backend", "mamba_backend", "fp8_gemm_runner_backend", "qsa_indexer_dtype",
    "enable_deterministic_inference", "enable_mixed_chunk", "moe_dense_tp_size", "enable_dp_attention",
    "modelopt_quant", "weight_version", "forward_hooks", "json_model_override_args",
]  # fmt: skip


@pytest.mark.parametrize("name", REPORTED)
def test_settings_that_were_missing_from_the_identity_are_in_it(name):
    plain, given = parse_serving(SERVING), parse_serving([*SERVING, f"{name}=other"])
    assert given != plain and given.arguments == {name: "other"}


def test_nothing_that_has_a_field_is_kept_out():
    assert not FIELDS & kept_out().keys()


def test_an_argument_that_no_table_knows_enters():
    assert given_arguments({"brand-new-kernel": "on", "port": 30000}) == {"brand_new_kernel": "on"}


def test_one_meaning_is_one_value(tmp_path):
    """The order of JSON keys, dashes and a path's spelling say nothing; a changed file does."""
    one = given_arguments({"json-model-override-args": '{"a": 1, "b": {"c": 2}}'})
    other = given_arguments({"json_model_override_args": {"b": {"c": 2}, "a": 1}})
    assert json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    file, copy = tmp_path / "scales.json", tmp_path / "copy.json"
    file.write_text("[1]"), copy.write_text("[1]")
    first = given_arguments({"quantization-param-path": str(file)})["quantization_param_path"]
    assert given_arguments({"quantization-param-path": str(copy)})["quantization_param_path"] == first
    file.write_text("[2]")
    assert given_arguments({"quantization-param-path": str(file)})["quantization_param_path"] != first
    folder = given_arguments({"kt-weight-path": str(tmp_path)})
    copy.rename(tmp_path / "other.json")
    assert given_arguments({"kt-weight-path": str(tmp_path)}) != folder


def test_a_field_and_a_profile_write_the_same_value():
    given = parse_serving([*SERVING, "enable_lora=true", "max_lora_rank=16", "load_format=dummy"]).arguments
    assert given == given_arguments({"enable-lora": True, "max-lora-rank": 16, "load-format": "dummy"})


@pytest.mark.parametrize("text", ['{"a": 1', "[1, 2", "{a: 1}"])
def test_a_text_that_begins_as_json_and_is_none_is_refused(text):
    with pytest.raises(Refusal, match="namespace-field"):
        given_arguments({"json-model-override-args": text})


def test_kept_out_arguments_are_refused_with_their_reason():
    for name in ("port", "log_level", "schedule_policy"):
        with pytest.raises(Refusal, match="is not part of a namespace"):
            parse_serving([*SERVING, f"{name}=1"])
