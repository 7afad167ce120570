"""What every other folder uses: types, errors, secrets, text that is quoted. Read `types` first."""
