"""Distillation: roles learn to answer like a teacher, without labels. Read `phase` first."""
