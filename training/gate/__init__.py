"""The gate: `decide` compares a new policy with the ones before and keeps it or rolls it back, by the `rule`."""
