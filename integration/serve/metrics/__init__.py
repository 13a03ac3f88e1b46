"""A small live page over the server's own Prometheus endpoint."""
