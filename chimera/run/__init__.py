"""The run directory: stores everything that later commands need. Read `directory` first, then `chain`."""
