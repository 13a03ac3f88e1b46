"""From pins to a runtime: fetch, unpack, patch, repack, install; and what an installed runtime is."""
