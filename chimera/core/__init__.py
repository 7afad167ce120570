"""What all other folders use: types, errors, secrets, quotes. Read `types` first."""
