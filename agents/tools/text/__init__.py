"""Texts that tools read and return: passages, their excerpts, and text out of mark-up."""
