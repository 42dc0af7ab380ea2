"""Privacy attacks on stored runs: membership inference (`fedlgd audit`) and gradient inversion (`fedlgd invert`).

`target`: a stored run, opened for an audit or replayed to the beginning of a round.
Membership: `shadow` draws the attacked images and trains federations with and without them, `signals` are the
statistics of an image that an attacker computes, `membership` has the attacks and their intervals, `scores` turns
statistics into findings, `paper_attack` is the attack of the paper, and `audit` plans and runs it all.
Inversion: `gradient_inversion` is the attack, `similarity` compares pictures, and `inversion` attacks the updates
of a run and asks whether its virtual images copy training images.
"""
