"""Rewards, rollouts through Agent Lightning, and the phases that train each role."""
