"""Causal draft-block masks for the compact verification of XQA: one launch packs a batch of any lengths."""
