"""Compare FedAvg on virtual data with FedLGD on the built-in sites.

Run: python examples/01_first_run.py
"""

import fedlgd

ROUNDS = 10
NET = {"name": "convnet", "width": 16}


def main(rounds: int = ROUNDS) -> dict[str, fedlgd.Result]:
    federation = fedlgd.load("builtin-digits", limit=500)
    methods = {
        "FedAvg on virtual data": fedlgd.configure(fedlgd.FedAvg, "quick", train_on="virtual"),
        "FedLGD": fedlgd.configure(fedlgd.FedLGD, "quick"),
    }
    results = {}
    for name, method in methods.items():
        results[name] = result = fedlgd.run(federation, method, rounds=rounds, net=NET)
        sites = "  ".join(f"{site} {100 * value:.1f}" for site, value in result.accuracy.items())
        print(f"{name}: {sites}")
    return results


if __name__ == "__main__":
    main()
