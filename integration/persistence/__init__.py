"""What the storage tier promises an operator, shown on real servers and real files: equal tokens, harmless faults, speed."""
