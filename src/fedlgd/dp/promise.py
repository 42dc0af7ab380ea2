"""What a method promises about privacy, as the manifest of its run states it."""

from typing import Any

from fedlgd.distill.settings import Budget, Private
from fedlgd.dp.budget import budget_mu, budget_shares
from fedlgd.dp.fedavg import SiteDp
from fedlgd.rundir.manifest import Promise


def promise_with(method: Any) -> Promise:
    """The promise of a method with a budget, and how it is spent."""
    budget: Budget = method.budget
    spent: dict[str, Any] = {}
    if isinstance(budget, Private):
        refine = getattr(method, "refine", None)
        spent = {
            "releases": budget.releases,
            "refinements": refine.private_releases(method.distil) if refine else 0,
            "gaussian": budget.rate == 1,
            "shares": budget_shares(budget, method.distil.start),
        }
    return Promise(
        epsilon=budget.epsilon,
        delta=budget.delta,
        mu=budget_mu(budget),
        simulation=bool(budget.test_key),
        protects="site" if isinstance(budget, SiteDp) else "image",
        adjacency=budget.adjacency,
        scores=budget.scores,
        **spent,
    )
