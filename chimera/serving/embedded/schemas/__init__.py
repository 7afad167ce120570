"""JSON schemas in the form that llguidance can compile: pure functions from schemas to schemas.

Every rewriting keeps one promise: a value of the new schema is valid against the old one. It may accept less.
"""
