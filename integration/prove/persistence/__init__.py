"""What the storage tier promises, shown on real servers and real files: equal tokens, harmless faults, speed."""
