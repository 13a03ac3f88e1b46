"""Profiles: which server arguments make which model run as meant, as data, and what must be there before it starts."""

from sm120.integration.serve.profile import Profile, load_profile, profile_names

__all__ = ["Profile", "load_profile", "profile_names"]
