"""nvcc compiles host code with the compiler that the JIT cache fingerprints and that links the module."""

import os
import shlex
import shutil
import stat
import subprocess
import sys

import pytest
from sglang.kernels.jit.utils.compile import cache, ninja, toolchain
from sglang.kernels.jit.utils.compile.spec import BuildSpec

GXX = shutil.which("g++")
# Also where an environment that is not activated has it
NINJA = shutil.which("ninja", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
USER_VARIABLES = ("CXX", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


@pytest.fixture(autouse=True)
def toolchain_of_this_test(monkeypatch):
    """No memory of the last test's environment, a fixed target, and none of the developer's own settings."""
    for name, function in vars(toolchain).copy().items():
        if hasattr(function, "__wrapped__"):
            monkeypatch.setattr(toolchain, name, function.__wrapped__)
    monkeypatch.setattr(cache, "_environment_fingerprint", cache._environment_fingerprint.__wrapped__)
    monkeypatch.setattr(toolchain, "target_flags", lambda: ["-gencode=arch=compute_120a,code=sm_120a"])
    monkeypatch.setattr(toolchain, "base_link_flags", lambda *, with_device: ["-shared"])
    for name in USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make_compiler(tmp_path):
    """A g++ in a given folder that logs each call, next to itself."""

    def make(folder: str, name: str = "my-g++") -> str:
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$*" >> {shlex.quote(str(path))}.log\nexec {GXX} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def spec_of(tmp_path, *cuda_cflags: str) -> BuildSpec:
    source = tmp_path / "tiny.cu"
    source.write_text("__global__ void kernel(int* p) { *p = 1; }\nint host() { return 2; }\n")
    return BuildSpec(
        module_args=("tiny",),
        cpp_files=(),
        cuda_files=(str(source),),
        cpp_wrappers=(),
        cuda_wrappers=(),
        cflags=(),
        cuda_cflags=cuda_cflags,
        ldflags=(),
        include_paths=(),
        header_only=False,
    )


def lines_of(spec: BuildSpec, tmp_path) -> list[str]:
    """What ninja would have a shell run: the compile and the link."""
    (tmp_path / "build.ninja").write_text(ninja.generate(spec))
    command = [NINJA, "-C", str(tmp_path), "-t", "commands"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def commands_of(spec: BuildSpec, tmp_path) -> dict[str, list[str]]:
    compile_words, link_words = map(shlex.split, lines_of(spec, tmp_path))
    return {"compile": compile_words, "link": link_words}


def ccbin_of(words: list[str]) -> list[str]:
    """Every host compiler that nvcc is given, first to last."""
    found = []
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("-ccbin", "--compiler-bindir"):
            found.append(value if equals else words[i + 1])
    return found


def test_unset_cxx_means_the_linking_compiler(tmp_path):
    commands = commands_of(spec_of(tmp_path), tmp_path)
    assert commands["link"][0] == "c++"
    assert ccbin_of(commands["compile"]) == ["c++"]


def test_empty_cxx_is_unset(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "")
    commands = commands_of(spec_of(tmp_path), tmp_path)
    assert commands["link"][0] == "c++"
    assert ccbin_of(commands["compile"]) == ["c++"]


@pytest.mark.parametrize("folder", ["plain", "with space", "quote'd"])
def test_path_reaches_nvcc_as_it_is(folder, tmp_path, monkeypatch, make_compiler):
    compiler = make_compiler(folder)
    monkeypatch.setenv("CXX", compiler)
    commands = commands_of(spec_of(tmp_path), tmp_path)
    assert commands["link"][0] == compiler
    assert ccbin_of(commands["compile"]) == [compiler]


@pytest.mark.parametrize(
    ("cxx", "link", "ccbin"),
    [
        ("ccache g++", ["ccache", "g++"], "g++"),
        ("ccache distcc g++ -m64", ["ccache", "distcc", "g++", "-m64"], "g++"),
        ("g++ -m64", ["g++", "-m64"], "g++"),
        ("ccache 'g++'", ["ccache", "g++"], "g++"),
    ],
)
def test_launchers_and_flags_are_for_the_host_rules_only(cxx, link, ccbin, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, *_: f"/usr/bin/{name}" if " " not in name else None)
    monkeypatch.setenv("CXX", cxx)
    commands = commands_of(spec_of(tmp_path), tmp_path)
    assert commands["link"][: len(link)] == link
    assert ccbin_of(commands["compile"]) == [ccbin]


def test_program_named_with_a_space_is_not_a_command(tmp_path, monkeypatch, make_compiler):
    make_compiler("bin", "ccache g++")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CXX", "ccache g++")
    commands = commands_of(spec_of(tmp_path), tmp_path)
    assert commands["link"][0] == "ccache g++"
    assert ccbin_of(commands["compile"]) == ["ccache g++"]


@pytest.mark.parametrize("cxx", ["/nonexistent/g++", "no-such-compiler -m64", "unbalanced 'quote"])
def test_nonexistent_cxx_is_named_in_both_commands(cxx, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", cxx)
    commands = commands_of(spec_of(tmp_path), tmp_path)
    assert commands["link"][0] == cxx
    assert ccbin_of(commands["compile"]) == [cxx]


@pytest.mark.parametrize(
    "flags", [["-ccbin", "/theirs"], ["-ccbin=/theirs"], ["--compiler-bindir", "/theirs"], ["-ccbin /theirs"]]
)
def test_callers_own_choice_wins(flags, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("NVCC_CCBIN", "/not/theirs")
    assert ccbin_of(commands_of(spec_of(tmp_path, *flags), tmp_path)["compile"]) == ["/theirs"]


@pytest.mark.parametrize("variable", ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"])
@pytest.mark.parametrize("value", ["-O1 -ccbin /theirs", "--compiler-bindir=/theirs"])
def test_choice_in_nvccs_environment_wins(variable, value, tmp_path, monkeypatch):
    """The last -ccbin wins, so ours would override one that is prepended."""
    monkeypatch.setenv(variable, value)
    assert ccbin_of(commands_of(spec_of(tmp_path), tmp_path)["compile"]) == []


def test_nvcc_ccbin_wins_and_is_part_of_the_build_key(tmp_path, monkeypatch, make_compiler):
    monkeypatch.setenv("CXX", "g++")
    spec = spec_of(tmp_path)
    fingerprint = cache._environment_fingerprint()

    monkeypatch.setenv("NVCC_CCBIN", make_compiler("theirs"))
    commands = commands_of(spec, tmp_path)
    assert commands["link"][0] == "g++"
    assert ccbin_of(commands["compile"]) == [os.environ["NVCC_CCBIN"]]

    # Another version at the same path
    shutil.copy(shutil.which("true"), os.environ["NVCC_CCBIN"])
    assert cache._environment_fingerprint() != fingerprint


def test_nvcc_ccbin_may_be_a_folder(tmp_path, monkeypatch, make_compiler):
    gcc = make_compiler("theirs", "gcc")
    monkeypatch.setenv("NVCC_CCBIN", os.path.dirname(gcc))
    assert ccbin_of(commands_of(spec_of(tmp_path), tmp_path)["compile"]) == [gcc]


def test_ccache_is_not_the_fingerprinted_compiler(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(toolchain, "device_compiler_path", lambda: GXX)
    monkeypatch.setenv("CXX", "g++")
    fingerprint = cache._environment_fingerprint()
    monkeypatch.setattr(shutil, "which", lambda name, *_: f"/usr/bin/{name}" if " " not in name else None)
    monkeypatch.setenv("CXX", "ccache g++")
    caplog.clear()
    assert cache._environment_fingerprint() == fingerprint
    assert "Cannot fingerprint compiler ccache g++" not in caplog.text


@pytest.mark.parametrize("runtime", ["is_hip_runtime", "is_sail_runtime", "is_musa_runtime"])
def test_other_device_compilers_are_left_alone(runtime, tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, runtime, lambda: True, raising=False)
    monkeypatch.setattr(toolchain, "device_compiler_path", lambda: "/opt/devicecc")
    monkeypatch.setenv("CXX", "g++")
    words = commands_of(spec_of(tmp_path), tmp_path)["compile"]
    assert words[0] == "/opt/devicecc"
    assert ccbin_of(words) == []


@pytest.mark.parametrize("folder", ["plain", "with space", "dol$HOME", "back`tick", "quote'd"])
def test_compiler_runs_although_nvcc_puts_it_in_a_shell_line(folder, tmp_path, monkeypatch, make_compiler):
    """nvcc runs `sh -c '"<ccbin>" …'`, and so does what takes its place here."""
    compiler = make_compiler(folder)
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        "#!/bin/sh\n"
        'for word; do case "$word" in -ccbin=*) ccbin=${word#-ccbin=};; esac; done\n'
        'exec sh -c "\\"$ccbin\\" -D__CUDACC__ --version"\n'
    )
    nvcc.chmod(0o755)
    monkeypatch.setattr(toolchain, "device_compiler_path", lambda: str(nvcc))
    monkeypatch.setenv("CXX", compiler)
    subprocess.run(["sh", "-c", lines_of(spec_of(tmp_path), tmp_path)[0]], cwd=tmp_path, check=False)
    assert os.path.exists(f"{compiler}.log"), "not run"
    with open(f"{compiler}.log") as log:
        assert log.read() == "-D__CUDACC__ --version\n"
