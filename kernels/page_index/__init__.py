"""The index of NIXL FILE storage, which decides what is deleted when pages are too many."""
