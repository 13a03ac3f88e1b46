"""Sparse attention of Qwen4-exp (QSA): reference, Triton kernels over the paged KV pool, exact block top-k."""
