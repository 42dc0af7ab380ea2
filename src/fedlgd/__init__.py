"""Federated learning on small distilled data sets.

import fedlgd
federation = fedlgd.load("builtin-digits")
result = fedlgd.run(federation, fedlgd.FedLGD(), rounds=30)
result.accuracy, result.model, result.anchors, result.virtual, result.records
result.predict("digit.png")
"""

from fedlgd.core.public import on_first_use

__version__ = "0.1.0"
__getattr__, __dir__ = on_first_use(__name__, __file__, "__version__")
