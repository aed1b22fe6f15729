"""Stopping when a score gets no better."""


class EarlyStopping:
    """`stopping(score)` after each evaluation: true once `patience` evaluations in a row were not better than the best
    by more than `min_delta`. `higher`: whether a higher score is the better one (AUC; not a loss).

    `best` and `best_at` (the number of that evaluation, from 0 on) tell of the best one, `improved` whether the last
    one was it; `state` is all that resuming needs."""

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
