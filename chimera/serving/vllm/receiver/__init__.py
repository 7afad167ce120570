"""The one file that vLLM's own environment loads: `PYTHONPATH` names this folder, so nothing else may lie in it."""
