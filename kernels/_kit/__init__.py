"""The kit that compiles, interprets, simulates and measures kernels for their tests and benches: see README.md."""
