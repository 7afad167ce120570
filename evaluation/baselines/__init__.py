"""Whom the society is compared with: simple readers, single agents, majorities. Read `simple`, then `standing`."""
