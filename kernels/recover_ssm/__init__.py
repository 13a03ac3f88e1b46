"""Speculative verification of gated delta nets without a pool of intermediate states."""
