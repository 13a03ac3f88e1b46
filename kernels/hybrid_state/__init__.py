"""Byte formulas of the scratch that speculative decoding needs in a hybrid linear-attention model."""
