"""Measure a served model through its OpenAI-compatible interface without mixing unlike numbers. Definitions:
docs/qualification.md."""
