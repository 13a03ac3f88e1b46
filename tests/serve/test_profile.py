"""Profiles: the schema, what a user's file and --set may change, what preflight says, what enters the namespace."""

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sm120.integration.build.doctor import diagnose
from sm120.integration.cli import app
from sm120.integration.common.checkout import Checkout
from sm120.integration.common.gpus import QUERY, Gpu
from sm120.integration.common.refusal import Refusal
from sm120.integration.measure.qualify import device
from sm120.integration.serve import preflight
from sm120.integration.serve.preflight import capability_check, ready
from sm120.integration.serve.profile import FOLDER, load_profile, profile_names
from sm120.integration.serve.server_arguments import Machine, arguments, environment, overrides, serving, storage_config

from ..runtime_records import written

ABLE = Machine(io_uring=True, direct_io=True)
GPUS = {
    "sm120": Gpu("0", "GPU-aa", "RTX PRO 6000", "12.0", "580", "97887 MiB", "97200 MiB"),
    "sm121": Gpu("1", "GPU-bb", "GB10", "12.1", "580", "120000 MiB", "110000 MiB"),
}


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path / "config"))
    for name in [name for name in os.environ if name.startswith("SGLANG_")]:
        monkeypatch.delenv(name)


def words(name: str, *settings: str) -> list[str]:
    return arguments(load_profile(name, list(settings)), ABLE, host="127.0.0.1", port=1)


def value(line: list[str], option: str) -> str:
    return line[line.index(option) + 1]


def test_four_profiles_ship():
    assert profile_names() == ["cpu-proof", "flash-next", "flash-next-two-cards", "qwen38-27b-dflash2"]


def test_two_cards_differ_from_one_by_what_two_cards_need():
    one, two = load_profile("flash-next"), load_profile("flash-next-two-cards")
    changed = {key for key in {**one.server, **two.server} if one.server.get(key) != two.server.get(key)}
    assert changed == {"tp-size", "mem-fraction-static", "hicache-size"} and two.server["tp-size"] == 2
    assert (one.rope, one.storage, one.expect, one.planner) == (two.rope, two.storage, two.expect, two.planner)
    # Pages of a rank hold its heads: the two never share a folder.
    assert one.label != two.label


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "qwen38-27b-dflash2",
            {
                "--context-length": "524288",
                "--kv-cache-dtype": "fp8_e4m3",
                "--speculative-draft-kv-cache-dtype": "fp8_e4m3",
                "--speculative-algorithm": "DFLASH",
                "--speculative-num-draft-tokens": "8",
                "--speculative-draft-window-size": "2048",
                "--prefill-attention-backend": "flashinfer",
                "--decode-attention-backend": "trtllm_mha",
                "--speculative-attention-mode": "decode",
                "--max-mamba-cache-size": "24",
                "--mamba-max-states-per-path": "5",
                "--hicache-size": "96",
                "--hicache-mem-layout": "page_first",
                "--hicache-io-backend": "kernel",
                "--hicache-write-policy": "write_through",
            },
        ),
        (
            "flash-next",
            {
                "--speculative-algorithm": "NEXTN",
                "--speculative-num-steps": "3",
                "--speculative-eagle-topk": "1",
                "--speculative-num-draft-tokens": "4",
                "--linear-attn-decode-backend": "flashinfer",
                "--linear-attn-prefill-backend": "flashinfer",
                "--moe-runner-backend": "flashinfer_cutlass",
                "--speculative-moe-runner-backend": "flashinfer_cutlass",
                "--mamba-ssm-dtype": "bfloat16",
                "--gdn-mtp-cache-mode": "none",
                "--max-mamba-cache-size": "24",
                "--page-size": "64",
                "--hicache-size": "32",
            },
        ),
    ],
)
def test_the_settings_that_were_asked_for(name, wanted):
    line = words(name)
    assert {option: value(line, option) for option in wanted} == wanted
    storage = json.loads(value(line, "--hicache-storage-backend-extra-config"))
    assert storage["use_uring"] == "true" and storage["use_direct_io"] is True


def test_yarn_doubles_both_models():
    target, draft = "--json-model-override-args", "--speculative-draft-json-model-override-args"
    for name, option in (("qwen38-27b-dflash2", target), ("qwen38-27b-dflash2", draft), ("flash-next", target)):
        line = words(name)
        given = json.loads(value(line, option))
        rope = given["rope_parameters"]
        assert rope["factor"] * rope["original_max_position_embeddings"] == 524_288
        # The length that the server accepts is not taken from the factor.
        assert given["max_position_embeddings"] == 524_288 == int(value(line, "--context-length"))


def test_rope_keeps_what_the_checkpoint_says(tmp_path):
    own = {"rope_theta": 1e7, "mrope_section": [11, 11, 10], "rope_type": "default"}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"rope_parameters": own}}))
    merged = overrides({}, {"rope_type": "yarn", "factor": 2.0}, tmp_path)["text_config"]["rope_parameters"]
    assert merged == {**own, "rope_type": "yarn", "factor": 2.0}
    told = {"factor": 4.0, "original_max_position_embeddings": 1000}
    assert overrides({}, told, tmp_path)["text_config"]["max_position_embeddings"] == 4000
    assert overrides({"max_position_embeddings": 7}, told, None)["max_position_embeddings"] == 7
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(Refusal, match=r"\[profile-checkpoint\].*config.json"):
        overrides({}, {"factor": 2.0}, tmp_path)


def test_a_users_file_and_settings_win_in_that_order(tmp_path, monkeypatch):
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path))
    (tmp_path / "flash-next.toml").write_text('[paths]\nmodel = "/a"\n[server]\nmax-running-requests = 2\n')
    profile = load_profile("flash-next")
    assert (profile.paths.model, profile.server["max-running-requests"]) == ("/a", 2)
    profile = load_profile("flash-next", ["max_running_requests=3", "paths.model=/b", "hicache-size="])
    assert (profile.paths.model, profile.server["max-running-requests"]) == ("/b", 3)
    assert "hicache-size" not in profile.server


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("max-running-requests", "not KEY=VALUE"),
        ("needs.disk_gb=0", "no table that can be set"),
        ("model-path=/x", "set paths.model"),
        ("paths.modle=/x", "Extra inputs are not permitted"),
        ("page-size=[[1]]", "server.page-size"),
        ("gdn-cache-mode=none", "nearest: gdn-mtp-cache-mode"),
        ("mem-fraction-statik=0.9", "nearest: mem-fraction-static"),
        ("server.max-runing-requests=2", "nearest: max-running-requests"),
    ],
)
def test_settings_that_are_refused(setting, says):
    with pytest.raises(Refusal, match=says):
        load_profile("flash-next", [setting])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('capability = "12.0"', 'capability = ">=12.0"', "capability"),
        ('schema = "sm120-profile-1"', 'schema = "2"', "schema"),
        ("[needs]", '[needs]\nmade_model = "dense"', "exactly one of model"),
        ("page-size = 64", "page_size = 64", "without its dashes"),
        ("[storage]", "[stroage]", "stroage"),
        ("[server]", "[server", "not a TOML file"),
    ],
)
def test_a_malformed_profile_names_its_key(tmp_path, old, new, says):
    text = (FOLDER / "flash-next.toml").read_text()
    assert old in text
    path = tmp_path / "p.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(Refusal, match=says) as refused:
        load_profile(str(path))
    assert refused.value.code == "profile-schema"


def test_an_unknown_profile_lists_the_known():
    with pytest.raises(Refusal, match="did you mean flash-next"):
        load_profile("flash")


def test_a_users_file_may_not_move_the_device(tmp_path, monkeypatch):
    monkeypatch.setenv("SM120_CONFIG", str(tmp_path))
    (tmp_path / "flash-next.toml").write_text('capability = "12.1"\n')
    with pytest.raises(Refusal, match="'capability' is not a table"):
        load_profile("flash-next")


def test_capability_is_exact():
    profile = load_profile("flash-next")
    assert capability_check(profile, [GPUS["sm120"]]).ok is True
    refused = capability_check(profile, [GPUS["sm121"]])
    assert refused.ok is False and "SM121" in refused.found
    for other in ("12.00", "12", "13.0", "9.0", "120"):
        assert capability_check(profile, [Gpu("0", "GPU-x", "X", other, "", "")]).ok is False
    assert capability_check(profile, None).found == "no NVIDIA driver"
    assert capability_check(profile, []).ok is False
    # The first visible device is the one that serves, unless the server is told to begin at another.
    assert capability_check(profile, [GPUS["sm121"], GPUS["sm120"]]).ok is False
    second = load_profile("flash-next", ["base-gpu-id=1"])
    assert capability_check(second, [GPUS["sm121"], GPUS["sm120"]]).ok is True
    assert capability_check(second, [GPUS["sm120"]]).ok is False


@pytest.fixture(autouse=True)
def cuda_home(tmp_path_factory, monkeypatch, toolkit):
    """A CUDA toolkit that fits, whatever this machine has."""
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path_factory.mktemp("cuda"))))


def complete(tmp_path: Path) -> dict[str, object]:
    """A machine on which flash-next may start."""
    runtime, model = tmp_path / "runtime", tmp_path / "model"
    for folder in (runtime, model, tmp_path / "pages"):
        folder.mkdir()
    written(runtime, "cuda")
    (model / "config.json").write_text("{}")
    (model / "m.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    settings = [f"paths.model={model}", f"paths.storage={tmp_path / 'pages'}"]
    return {"settings": settings, "runtime": runtime, "storage": tmp_path / "pages", "gpus": [GPUS["sm120"]]}


@pytest.fixture(autouse=True)
def plenty_of_memory(monkeypatch):
    """What this machine has decides no test but those that say what is available."""
    monkeypatch.setattr("sm120.integration.serve.memory_checks.available_memory", lambda: 10**12)


def checks(tmp_path, found, machine=ABLE, monkeypatch=None):
    profile = load_profile("flash-next", found["settings"])
    profile.needs.disk_gb = 0
    rest = {key: found[key] for key in ("runtime", "storage", "gpus")}
    return {check.name: check for check in preflight.preflight(profile, machine=machine, **rest)}


def test_preflight_is_ready_only_when_everything_is_there(tmp_path):
    found = complete(tmp_path)
    assert ready(list(checks(tmp_path, found).values()))
    assert checks(tmp_path, found, Machine(True, False))["O_DIRECT"].ok is False
    assert checks(tmp_path, found, Machine(False, True))["io_uring"].ok is False
    found["gpus"] = [GPUS["sm121"]]
    assert checks(tmp_path, found)["device"].ok is False
    found["gpus"] = [GPUS["sm120"]._replace(free="[N/A]")]
    answers = checks(tmp_path, found)
    assert answers["GPU memory"].ok is None and not ready(list(answers.values()))
    # An RTX 5090, and a card of which another program has taken most.
    for gpu in (GPUS["sm120"]._replace(memory="32607 MiB", free="32000 MiB"), GPUS["sm120"]._replace(free="36447 MiB")):
        found["gpus"] = [gpu]
        answers = checks(tmp_path, found)
        assert answers["GPU memory"].ok is False and "GiB free of" in answers["GPU memory"].found


def test_preflight_names_what_is_missing_of_a_checkpoint(tmp_path):
    found = complete(tmp_path)
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "other.safetensors"}}))
    assert "other.safetensors" in checks(tmp_path, found)["model"].found
    index.write_text("[]")
    assert "not a shard index" in checks(tmp_path, found)["model"].found
    (tmp_path / "model" / "m.safetensors").unlink()
    assert "no *.safetensors" in checks(tmp_path, found)["model"].found
    written(tmp_path / "runtime", "cpu")
    assert checks(tmp_path, found)["runtime"].ok is False


def test_memory_and_disk_are_compared(tmp_path, monkeypatch):
    found = complete(tmp_path)
    profile = load_profile("flash-next", found["settings"])
    profile.needs.disk_gb = 1e9
    monkeypatch.setattr("sm120.integration.serve.memory_checks.available_memory", lambda: 40 * 10**9)
    rest = {key: found[key] for key in ("runtime", "storage", "gpus")}
    answers = {check.name: check.ok for check in preflight.preflight(profile, machine=ABLE, **rest)}
    assert answers["disk"] is False and answers["memory"] is False


def test_auto_follows_the_machine_and_fixed_does_not():
    proof, fixed = load_profile("cpu-proof"), load_profile("flash-next")
    poor = Machine(io_uring=False, direct_io=False)
    assert storage_config(proof, poor)["use_aio"] == "true" and not storage_config(proof, poor)["use_direct_io"]
    assert storage_config(fixed, poor)["use_uring"] == "true" and storage_config(fixed, poor)["use_direct_io"]
    with pytest.raises(Refusal, match="must be auto, io_uring or libaio"):
        storage_config(load_profile("cpu-proof", ["storage.queue=posix"]), ABLE)


def test_another_path_or_served_name_finds_the_same_pages(tmp_path):
    """Neither is in the namespace or in a page's key, which would be the path without `model_key`."""

    def stored(place, name):
        (folder := tmp_path / place).mkdir()
        (folder / "config.json").write_text("{}")
        profile = load_profile("flash-next", [f"paths.model={folder}", f"served-model-name={name}"])
        line = arguments(profile, ABLE, host="::", port=1)
        assert value(line, "--model-path") == str(folder)
        return value(line, "--hicache-storage-backend-extra-config"), serving(profile, ABLE, "2.14.1", {})

    first, second = stored("here", "one"), stored("there", "two")
    assert first == second
    assert json.loads(first[0])["model_key"]


@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        ("kv-cache-dtype=bf16", True),
        ("speculative-draft-kv-cache-dtype=fp8_e5m2", True),
        ("speculative-draft-model-quantization=unquant", True),
        ("mamba-ssm-dtype=float32", True),
        ("gdn-mtp-cache-mode=full", True),
        ("rope.target.factor=4.0", True),
        ("storage.page_checksum=false", True),
        ("page-size=128", True),
        ("hicache-size=64", False),
        ("max-running-requests=2", False),
        ("context-length=65536", False),
        ("paths.storage=/elsewhere", False),
    ],
)
def test_what_decides_the_bytes_enters_the_namespace(setting, changes):
    before = serving(load_profile("flash-next"), ABLE, "2.14.1", {})
    after = serving(load_profile("flash-next", [setting]), ABLE, "2.14.1", {})
    assert (before != after) is changes


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [
        ("SGLANG_MAMBA_CONV_DTYPE", "float16", "mamba_conv_dtype"),
        ("SGLANG_MAMBA_SSM_DTYPE", "float16", "mamba_ssm_dtype"),
        ("SGLANG_USE_HND_KVCACHE", "1", "environment"),
        ("SGLANG_LOG_LEVEL", "debug", None),
        ("SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", "/elsewhere", None),
        ("HOME", "/elsewhere", None),
        ("SGLANG_HOST_IP", "10.0.0.7", None),
        ("SGLANG_LOCAL_IP_NIC", "eth1", None),
        ("SGLANG_ZMQ_SOURCE_IP", "10.0.0.7", None),
        # Kubernetes sets these beside a Service that is called sglang.
        ("SGLANG_PORT", "tcp://10.96.0.9:30000", None),
        ("SGLANG_PORT_30000_TCP_ADDR", "10.96.0.9", None),
        ("SGLANG_SERVICE_PORT_HTTP", "30000", None),
        ("SGLANG_SERVICE_HOST", "10.96.0.9", None),
        ("SGLANG_PORTABLE_KERNELS", "1", "environment"),
        ("SGLANG_HOST_IPV6_ONLY", "1", "environment"),
    ],
)
def test_what_the_server_reads_from_its_environment_enters_the_namespace(name, text, field):
    profile = load_profile("flash-next", ["mamba-ssm-dtype="])
    before = serving(profile, ABLE, "2.14.1", {}).model_dump()
    after = serving(profile, ABLE, "2.14.1", {name: text}).model_dump()
    assert {key for key in before if before[key] != after[key]} == ({field} if field else set())
    assert field is None or text in after[field]


def test_an_argument_wins_over_the_environment_as_in_the_server():
    told = serving(load_profile("flash-next"), ABLE, "2.14.1", {"SGLANG_MAMBA_SSM_DTYPE": "float16"})
    assert told == serving(load_profile("flash-next"), ABLE, "2.14.1", {}) and told.mamba_ssm_dtype == "bfloat16"


def test_the_environment_names_the_pages():
    profile = load_profile("flash-next", ["environment.SGLANG_X=1"])
    extra = environment(profile, Path("/p"))
    assert extra["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"] == "/p" and extra["SGLANG_X"] == "1"


@pytest.mark.parametrize("name", ["qwen38-27b-dflash2", "flash-next"])
def test_a_gpu_profile_prints_its_command_line_and_verdict(name):
    done = CliRunner().invoke(app, ["serve", name, "--print"], env={"COLUMNS": "200"})
    assert "--speculative-algorithm" in done.output and "preflight" in done.output
    assert done.exit_code == (0 if "verdict: ready" in done.output else 1)
    assert "verdict: not ready" in done.output  # no checkpoint is set
    assert "paths.model=FOLDER, or [paths]" in done.output


def nvidia_smi(folder: Path, monkeypatch, *gpus: Gpu) -> None:
    """A driver with these GPUs: a tool that answers the columns it is asked for."""
    answers = [
        {**dict(zip(QUERY.split(","), gpu, strict=True)), "power.limit": f"{600 + int(gpu.number)}.00"} for gpu in gpus
    ]
    tool = folder / "nvidia-smi"
    tool.write_text(
        # As pip writes it: no kernel reads a #! line with a space in its path. sh runs the second line, Python skips it.
        f"#!/bin/sh\n''''exec '{sys.executable}' \"$0\" \"$@\" # '''\n"
        "import sys\n"
        "names = next(word for word in sys.argv if word.startswith('--query-gpu=')).split('=')[1].split(',')\n"
        f"for row in {answers!r}:\n    print(', '.join(row.get(name, '7') for name in names))\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def verdict(name: str, *settings: str) -> str:
    line = ["serve", name, *(word for setting in settings for word in ("--set", setting))]
    done = CliRunner().invoke(app, line, env={"COLUMNS": "300"})
    assert done.exit_code == 1  # no checkpoint is set
    return done.output


def device_is_named(output: str) -> bool:
    """Whether the verdict has the device among what is not ready."""
    return "device" in output.split("verdict: not ready")[1]


@pytest.mark.parametrize("name", ["qwen38-27b-dflash2", "flash-next"])
def test_sm121_is_refused_with_the_reason_on_the_command_line(tmp_path, monkeypatch, name):
    nvidia_smi(tmp_path, monkeypatch, GPUS["sm121"])
    output = verdict(name)
    assert device_is_named(output) and "GPU 1: GB10, 12.1: SM121 (GB10) is another chip" in output
    # The very same machine with the one right chip is refused for other reasons only.
    nvidia_smi(tmp_path, monkeypatch, GPUS["sm120"])
    assert not device_is_named(verdict(name))


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (None, "0"),
        ("0", "0"),
        ("1", "1"),
        ("1,0", "1"),
        ("GPU-bb", "1"),
        ("GPU-b", "1"),
        (" 1 ", "1"),
        ("GPU-", None),
        ("", None),
        ("-1", None),
        ("7,1", None),
        ("MIG-bb", None),
    ],
)
def test_the_gpu_that_cuda_will_show_is_the_one_that_is_asked(tmp_path, monkeypatch, names, taken):
    first, second = GPUS["sm121"]._replace(number="0", uuid="GPU-aa"), GPUS["sm120"]._replace(number="1", uuid="GPU-bb")
    nvidia_smi(tmp_path, monkeypatch, first, second)
    given = [] if names is None else [f"environment.CUDA_VISIBLE_DEVICES={names}"]
    if names is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert device_is_named(verdict("flash-next")) is (taken != "1")
    here = device(load_profile("flash-next"))
    if taken is None:
        assert here["device"].startswith("CPU")
    else:
        assert here["device"] == (first, second)[int(taken)].name and here["power_limit_w"] == 600 + int(taken)
    assert device() == here
    missing = [line for line in diagnose(Checkout(tmp_path)).missing if "exactly 12.0" in line]
    assert bool(missing) is (names is not None and taken != "1"), "the doctor asks for any visible one"
    # What the profile sets for its server counts as well, and before what it inherits.
    if names:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        assert device_is_named(verdict("flash-next", *given)) is (taken != "1")


def test_indices_mean_what_nvidia_smi_says_when_the_server_starts():
    assert environment(load_profile("flash-next"), None)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    told = load_profile("flash-next", ["environment.CUDA_DEVICE_ORDER=FASTEST_FIRST"])
    assert environment(told, None)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_cpu_profile_has_no_gpu_to_measure(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, GPUS["sm120"])
    assert device(load_profile("cpu-proof"))["device"].startswith("CPU")


def test_profiles_are_plain_toml_without_machine_paths():
    for name in profile_names():
        text = (FOLDER / f"{name}.toml").read_text()
        assert tomllib.loads(text)["paths"] if "[paths]" in text else True
        assert '"/' not in text


def test_serve_becomes_the_server_with_the_namespace_of_its_settings(tmp_path, monkeypatch):
    """Everything of a start but the server: `bin/serve` is a script that writes down what it was given."""
    from sm120.integration.serve import launch as serve
    from sm120.integration.serve.namespace.namespace_store import read_namespace

    home = tmp_path / "build" / "runtime"
    (home / "bin").mkdir(parents=True)
    for name in ("python", "serve"):
        (home / "bin" / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nenv\n')
        (home / "bin" / name).chmod(0o755)
    written(home, versions={"torch": "2.13.0"})
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "m.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    text = (FOLDER / "cpu-proof.toml").read_text().replace('made_model = "dense"', 'model = "tiny"')
    own = tmp_path / "own.toml"
    own.write_text(text)
    profile = load_profile(str(own), [f"paths.model={model}", f"paths.storage={tmp_path / 'pages'}"])
    prepared = serve.prepare(Checkout(tmp_path), profile, host="127.0.0.1", port=31000)
    assert ready(prepared.checks), [check for check in prepared.checks if not check.ok]
    started = []
    monkeypatch.setattr(serve.os, "execve", lambda file, words, env: started.append((file, words, env)))
    serve.launch(Checkout(tmp_path), prepared, lambda line: None)
    file, line, env = started[0]
    assert file == str(home / "bin" / "serve") and value(line, "--model-path") == str(model)
    assert value(line, "--port") == "31000" and env["SGLANG_USE_CPU_ENGINE"] == "0"
    pages = Path(env["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"])
    namespace = read_namespace(pages.parent)
    assert pages.is_dir() and namespace.label == "cpu_proof"
    assert namespace.identity["serving"]["torch_version"] == "2.13.0" and namespace.identity["runtime"] == "ab" * 32
    # Other bytes, other folder; the same settings, the same folder.
    again = serve.namespace(prepared, model)
    assert again.folder == namespace.folder
    # So does a setting that the server inherits, here a dtype of the same size.
    monkeypatch.setenv("SGLANG_MAMBA_CONV_DTYPE", "float16")
    assert serve.namespace(prepared, model).identity["serving"]["mamba_conv_dtype"] == "float16"
    monkeypatch.delenv("SGLANG_MAMBA_CONV_DTYPE")
    profile.server["page-size"] = 32
    assert serve.namespace(prepared, model).folder != namespace.folder
