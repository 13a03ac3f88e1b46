"""Fused per-head RMSNorm and rotary embedding for one- and three-axis positions (mRoPE)."""
