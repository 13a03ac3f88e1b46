"""Everything that turns pins, patches and kernels into something else: a runtime, a proof, a pull request."""
