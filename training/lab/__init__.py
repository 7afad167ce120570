"""Where rollouts run: store, gateway, runners, recorder. Read `lab` first."""
