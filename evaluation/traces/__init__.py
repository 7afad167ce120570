"""One rollout, call by call and token by token. Read `calls` first."""
