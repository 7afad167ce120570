"""What a gain or a wrong answer is due to: the first wrong step, repairs, and Shapley values. Read `lost` first."""
