"""Privacy attacks on stored runs, which `target` and `replay` bring back: membership and gradient inversion.

Membership: `candidates` are the attacked images, `enough` says whether they are; `shadow` trains federations with
and without them, `signals` are what an attack looks at, `membership` has the attacks, `scores` their numbers, and
`audit` does it all. `paper_attack` is the attack of the paper. Inversion: `gradient_inversion` is the attack,
`inversion` the study of a run, `similarity` compares pictures, and `memorisation` asks whether virtual images are
copies.
"""
