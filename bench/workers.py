"""Wall time of one small run with the engines `loop` and `pool`, measured alternately."""

import time

from bench.tools.measure import Spread
from fedlgd.data.suites import load
from fedlgd.engines.process import usable_cores
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.runs.config import configure
from fedlgd.runs.run import run

METHOD = configure(FedLGD, distil__steps=40, refine__steps=10, anchors__steps=5)


def speed_up(data: str, width: int, repeats: int) -> dict[str, object]:
    """The speed-up of `pool` with one worker per core, for the enrolment and four rounds."""
    federation = load(data)

    def seconds(engine: str) -> float:
        start = time.perf_counter()
        run(federation, METHOD, rounds=4, net={"width": width}, engine=engine)
        return time.perf_counter() - start

    turns = [(seconds("loop"), seconds("pool")) for _ in range(repeats)]
    ratio = Spread.of([alone / together for alone, together in turns])
    workers = min(usable_cores(), len(federation.sites))
    return {"sites": len(federation.sites), "workers": workers, "seconds": turns, "median": ratio.median}
