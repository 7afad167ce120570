"""What is kept of rollouts and evaluations. Read `rollouts` first."""
