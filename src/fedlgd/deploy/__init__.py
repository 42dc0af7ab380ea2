"""Real sites over Flower: kits, the coordinator's server, the site's program, its policy and its journal.

Everyone gets a `kit`, with the `texts` in it. The server is `superlink` behind a `gate`, which counts by `limits`;
TLS begins in `handshake`. The `coordinator` connects to it for a run of `server`, and replies are `arriving`. A
site starts `supernode` and `worker`, which gives tasks to `client`: it obeys the `policy` and writes the
`journal`. `processes` starts and ends all of them.
"""
