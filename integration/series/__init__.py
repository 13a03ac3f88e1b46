"""A patch series: pins, patch files, the overlay, and how they are applied, rewritten and edited."""
