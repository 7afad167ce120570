"""One visit of a role: what it is told, its calls and tools, what it may quote, its record. Read `react` first."""
