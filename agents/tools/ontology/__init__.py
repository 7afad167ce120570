"""Proteins and Gene Ontology terms: the database that a tool searches, and the readers of public files."""
