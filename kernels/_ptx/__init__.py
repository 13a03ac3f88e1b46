"""Runs the PTX that a compiler made for sm_120a on the CPU, watches every access, and counts."""
