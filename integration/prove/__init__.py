"""Prove that a runtime serves: start it with tiny models made on the spot, ask it, compare with transformers."""
