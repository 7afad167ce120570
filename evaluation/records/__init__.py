"""Records of rollouts and evaluations. Read `rollouts` first."""
