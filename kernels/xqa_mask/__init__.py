"""Packed draft-block masks for XQA speculative verification. Entry point: `sm120.kernels.xqa_mask.op.pack_mask`."""
