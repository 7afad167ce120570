"""VeRL in one process. Read `local` first."""
