"""Reward models of the bandit: linear in the features of an action, with weights that all actions share.

`LinearThompson` keeps the posterior of Bayesian linear regression and draws each action with its probability of being
the best one. `SoftLogistic` keeps a point estimate that scikit-learn's SGD learns. Both can learn from further rows at
any time.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

DRAWS = 2000
"""Posterior draws from which the probabilities of one choice are estimated."""


class LinearThompson:
    """Bayesian linear regression, r = w . phi + noise, and Thompson sampling from its posterior.

    With prior w ~ N(0, s I) and noise variance v, the posterior after rows X with rewards y and weights c is N(m, S):
    S^-1 = I / s + X' C X / v and S^-1 m = X' C y / v (Bishop 2006, equations 3.50-3.51; Agrawal and Goyal 2013 for the
    bandit). Both sums grow row by row, so learning piece by piece in any order equals learning from all rows at once.

    Args:
        columns: Number of features d.
        prior_variance: s.
        noise_variance: v.
        seed: Seed of the draws in `probabilities`. It is fixed, so the same choice always has the same probabilities.
    """

    def __init__(self, columns: int, prior_variance: float, noise_variance: float, seed: int) -> None:
        self._noise = noise_variance
        self._precision: Array = np.eye(columns) / prior_variance
        self._moment: Array = np.zeros(columns)
        self._seed = seed
        self._solved: tuple[Array, Array] | None = None

    def scale_to(self, rewards: Array) -> None:
        """Do nothing: the posterior uses rewards unscaled."""

    def learn(self, rows: Array, rewards: Array, weights: Array) -> None:
        """Learn from rows (n, d) with rewards (n,); weights (n,) say how many rows each row counts as."""
        weighted = rows * (weights / self._noise)[:, None]
        self._precision += weighted.T @ rows
        self._moment += weighted.T @ rewards
        self._solved = None

    def posterior(self) -> tuple[Array, Array]:
        """Mean m (d,) and covariance S (d, d) of the weights."""
        if self._solved is None:
            covariance: Array = np.linalg.inv(self._precision)
            mean: Array = np.linalg.solve(self._precision, self._moment)
            self._solved = mean, (covariance + covariance.T) / 2
        return self._solved

    def predict(self, rows: Array) -> Array:
        """Posterior mean of each row's expected reward."""
        return rows @ self.posterior()[0]

    def probabilities(self, rows: Array) -> Array:
        """Share of `DRAWS` posterior draws in which each action is best; the choice is drawn from these shares."""
        mean, covariance = self.posterior()
        values, vectors = np.linalg.eigh(rows @ covariance @ rows.T)
        root = vectors * np.sqrt(np.clip(values, 0.0, None))
        normal = np.random.default_rng(self._seed).standard_normal((DRAWS, len(rows)))
        best = (rows @ mean + normal @ root.T).argmax(axis=1)
        return np.bincount(best, minlength=len(rows)) / DRAWS

    def state(self) -> dict[str, Array]:
        return {"precision": self._precision, "moment": self._moment}

    def restore(self, state: Mapping[str, Array]) -> None:
        self._precision, self._moment = state["precision"].copy(), state["moment"].copy()
        self._solved = None


class SoftLogistic:
    """Logistic regression on rewards scaled to [0, 1], learned by scikit-learn's SGDClassifier.

    A scaled reward z becomes two examples of one row: class 1 with weight z and class 0 with weight 1 - z. Their
    gradients add up to that of the cross-entropy with the soft label z, (sigmoid - z) phi, whose minimum estimates
    E[z | x, a] (fractional logit, Papke and Wooldridge 1996). This also holds for z outside [0, 1], where one
    weight is negative. Doubly robust targets can lie there, and clipping them would bias their mean. The smallest and
    largest reward of the first `scale_to` fix the scale. Its choices are greedy, so exploration has to be added.

    Args:
        columns: Number of features d.
        epochs: Passes over the rows of each call of `learn`.
    """

    def __init__(self, columns: int, lr: float, epochs: int, seed: int) -> None:
        self._columns = columns
        self._lr = lr
        self._epochs = epochs
        self._seed = seed
        self._calls = 0
        self._scale: Array = np.empty(0)
        self._coefficients: Array = np.zeros(columns)
        self._intercept: Array = np.zeros(1)

    def scale_to(self, rewards: Array) -> None:
        """Fix the scale at the first call."""
        if not self._scale.size:
            self._scale = np.array([rewards.min(), max(rewards.max(), rewards.min() + 1e-9)])

    def learn(self, rows: Array, rewards: Array, weights: Array) -> None:
        self.scale_to(rewards)
        low, high = self._scale
        soft = (rewards - low) / (high - low)
        both = np.vstack([rows, rows])
        labels = np.repeat([1, 0], len(rows))
        shares = np.concatenate([soft * weights, (1.0 - soft) * weights])
        random = np.random.default_rng([self._seed, self._calls])
        model = self._classifier()
        for _ in range(self._epochs):
            order = random.permutation(len(both))
            model.partial_fit(both[order], labels[order], sample_weight=shares[order])
        self._coefficients, self._intercept = model.coef_[0].copy(), model.intercept_.copy()
        self._calls += 1

    def _classifier(self) -> Any:
        """scikit-learn's estimator at the point where learning stopped; `partial_fit` needs only these attributes."""
        from sklearn.linear_model import SGDClassifier

        model: Any = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=self._lr, shuffle=False)
        model.classes_ = np.array([0, 1])
        model.n_features_in_ = self._columns
        model.coef_ = self._coefficients[None].copy()
        model.intercept_ = self._intercept.copy()
        model.t_ = 1.0
        return model

    def predict(self, rows: Array) -> Array:
        """Expected rewards on the original scale of the rewards (0 to 1 before anything was learned)."""
        low, high = self._scale if self._scale.size else (0.0, 1.0)
        return low + (high - low) / (1.0 + np.exp(-(rows @ self._coefficients + self._intercept)))

    def probabilities(self, rows: Array) -> Array:
        """1 for the action with the highest prediction (the first of equals), 0 for the others."""
        return np.eye(len(rows))[int(self.predict(rows).argmax())]

    def state(self) -> dict[str, Array]:
        """Scale, coefficients, intercept, and number of learning steps."""
        return {
            "scale": self._scale,
            "coefficients": self._coefficients,
            "intercept": self._intercept,
            "calls": np.array([float(self._calls)]),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        self._scale, self._coefficients = state["scale"], state["coefficients"]
        self._intercept, self._calls = state["intercept"], int(state["calls"][0])


RewardModel = LinearThompson | SoftLogistic
"""Predicts the reward of an action from its row phi(x, a)."""
