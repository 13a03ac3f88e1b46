"""A pin serves the interpreters and machines that it lists."""

from __future__ import annotations


def test_unserved_python_is_refused(built, refuses):
    built.release(version="1.1")
    pin = built.folder / "pin.toml"
    pin.write_text(pin.read_text().replace('python = "py3"', 'python = "cp27"'))
    refuses(built, "artifact-unsupported", "cp27/any")
