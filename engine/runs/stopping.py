"""Stopping when a score no longer improves."""


class EarlyStopping:
    """`stopping(score)` after each evaluation: true once `patience` evaluations in a row were not better than the best
    one by more than `min_delta`. `higher`: whether a higher score is better (AUC; not a loss).

    `best` and `best_at` (the index of the evaluation) describe the best one, `improved` tells whether it was the last
    one; `state` is everything needed to resume."""

    def __init__(self, patience, min_delta=0.0, higher=True):
        if patience < 1:
            raise ValueError(f"patience: expected 1 or more, got {patience}")
        self.patience, self.min_delta, self.higher = patience, min_delta, higher
        self.state = {"seen": 0, "best": None, "best_at": None}

    @property
    def best(self):
        return self.state["best"]

    @property
    def best_at(self):
        return self.state["best_at"]

    @property
    def improved(self):
        return self.state["seen"] > 0 and self.state["best_at"] == self.state["seen"] - 1

    def __call__(self, score):
        score, best = float(score), self.state["best"]
        better = score == score and (  # a NaN is never better
            best is None or (score > best + self.min_delta if self.higher else score < best - self.min_delta)
        )
        if better:
            self.state["best"], self.state["best_at"] = score, self.state["seen"]
        self.state["seen"] += 1
        since = self.state["seen"] - 1 - (-1 if self.state["best_at"] is None else self.state["best_at"])
        return since >= self.patience
