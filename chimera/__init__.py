"""Chimera: a society of nine LLM scientists, each role trained by its own algorithm."""

__version__ = "0.1.0"
