"""The one room that all kernels share: capability table, tensor contracts, tolerances, SIMT host shim, interpreter."""
