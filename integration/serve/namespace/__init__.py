"""Namespaces of stored pages: a folder per meaning of the bytes, so that pages of another meaning are never found."""
