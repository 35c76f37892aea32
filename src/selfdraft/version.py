"""The version of selfdraft, where every part can read it."""

__version__ = "0.1.0"
