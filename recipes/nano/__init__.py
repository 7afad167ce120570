"""The recipe of the bundled small model: `python -m recipes.nano`.

A Qwen2-architecture model of two million parameters learns the society's formats from generated tasks: search, quote,
compare, answer. It has deliberate weaknesses (see `transcripts.Habits`) that the pipeline can fix.
"""
