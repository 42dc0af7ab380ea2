"""Texts that are written into kits: instructions for those who receive them, and the default policy of a site."""

KIT_NAMES = {"server": "FOLDER/server", "site": "FOLDER/site-NAME"}

SERVER_README = """\
# Kit of the coordinator

For the person who runs the server of this federation. The server needs no images. Address for the sites:
`{server}`. Its certificate is valid until {until}; then renew it (below).

1. Install: `pip install 'fedlgd[flower]'`.
2. Start the server: `./start.sh` (or `fedlgd serve` with this folder). It shows which sites are connected.
   Ctrl-C stops it.
3. In a second terminal: `fedlgd run --engine flower --kit` with this folder, then `--method fedlgd --rounds 40`.

What is inside:

- `server.crt`, `server.key`: certificate and private key for TLS. `ca.crt`: the authority that the sites trust.
- `sites/*.pub`: public keys of the sites. Only these sites can connect. To exclude a site, remove its file.
- `secret`: whoever has it can start runs on this server. Keep this folder private (mode 0700).
- `state/`: what the server writes, made at the first start.

Renew the certificate where the kits were made: `fedlgd provision FOLDER --renew`, then copy `server.crt` and
`server.key` here. Sites keep their kits. A new site: `fedlgd provision FOLDER --add NAME`, then copy
`sites/NAME.pub` here.
"""

SITE_README = """\
# Kit of site {site}

For the person who runs this site. Your images stay on this machine. Server: `{server}`. Valid until {until}.

1. Install: `pip install 'fedlgd[flower]'`.
2. Read `site.toml`: it says which runs you allow and what you disclose. Change it before you start.
3. Start: `./start.sh --data IMAGES`, where IMAGES is your folder with one folder per class. It checks the
   images first, then waits for tasks. Ctrl-C stops it.
4. Read `journal.log`: what left this site, and what was refused.

This machine opens one outgoing HTTPS connection to the server; no port has to be open to the outside.

What is inside:

- `key`: your private key. Whoever has it is site {site} for the server: keep this folder private (mode 0700), and
  ask the coordinator, who made it, to delete the copy. If it is lost or copied, tell the coordinator to remove
  `sites/{site}.pub`, and ask for a new kit.
- `ca.crt`: how this machine recognises the server.
- `state/`: virtual sets and other states of your site, made at the first start. They are made from your images.
"""

POLICY = """\
# The policy of this site. Every task of the server is compared with it before anything is computed. A task that
# it does not allow is refused; journal.log says why. Changes apply to the next task.

# Methods that may run here. "fedlgd+*" also allows FedLGD with parts, for example fedlgd+proximal.
methods = ["fedlgd", "fedlgd+*", "fedavg", "fedavg+*", "fedprox", "fednova", "scaffold", "moon", "fedbn", "vhl"]

# Networks that may be trained here.
nets = ["convnet", "resnet18"]

# The largest number of rounds of a run.
rounds = 500

# What is disclosed besides the model: "counts" (training images per class, and how many test images), "scores"
# (accuracy and loss on your test images), "seconds" (how long a task took, and its FLOPs). A site without "counts"
# refuses enrolment and training, because methods need them; without "scores" it refuses to evaluate.
disclose = ["counts", "scores", "seconds"]

# Bounds on settings: a list of allowed values, or {min = ..., max = ...}. With required = true, runs that do
# not have the setting are refused too. All settings: docs/settings.md
[settings]
"anchors.start" = ["noise"]           # "statistics" would upload mean and deviation of the pixels of each class
"distil.per_class" = {max = 100}      # virtual images per class; they stay here
# Only runs with differential privacy. Methods on virtual sets, like FedLGD (0 means no noise: give a minimum):
# "distil.private.epsilon" = {min = 0.01, max = 8, required = true}
# Methods that train on real images, with the part dp-sgd:
# "dp.epsilon" = {max = 8, required = true}
"""
