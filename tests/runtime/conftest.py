"""What lies in in_runtime/ imports the patched runtime and is collected there, by a test of this folder."""

collect_ignore = ["in_runtime"]
