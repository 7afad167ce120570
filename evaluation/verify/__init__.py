"""Whether a report happened and is true. Read `check` first."""
