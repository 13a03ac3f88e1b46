"""One folder per optimization; each is an isolated, tested module."""
