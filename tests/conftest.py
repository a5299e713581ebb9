"""What all tests share: hypothesis without deadlines (machines are shared), servers of our own, runs into a temporary folder."""

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
