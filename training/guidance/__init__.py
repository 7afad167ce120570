"""Learning what roles are told: a search over prompts, examples and lessons, for models without access to weights.

`search` tries a candidate on training tasks and knows its cost; `fewshot`, `lessons`, `gepa`, `aflow` are algorithms.
"""
