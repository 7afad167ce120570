"""Chimera: a society of nine LLM scientists, each role trained by its own algorithm."""

from chimera.core.imports import prefer_own_packages

__version__ = "0.1.0"

prefer_own_packages()
