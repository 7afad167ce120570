"""OpenTelemetry out: recorded rollouts as spans for a collector of the user. Read `genai` first."""
