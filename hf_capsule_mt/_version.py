"""The version, alone in its file so that the build reads it without importing torch."""

__version__ = "0.12.0"
