"""Multiply every row of a matrix by a factor of its own: the module that `sm120 kernel new` copies."""
