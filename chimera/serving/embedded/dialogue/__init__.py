"""Conversations in the form that a model's chat template takes."""
