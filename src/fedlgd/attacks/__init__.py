"""Privacy attacks on stored runs: membership inference (`fedlgd audit`) and gradient inversion (`fedlgd invert`).

`target`: a stored run, opened for an audit or replayed to the beginning of a round.
Membership: `pool` draws the attacked images, `shadow` trains federations with and without them, `sent` recognises
what is in a message, `watch` is the attacker of a federation, `signals` are the statistics of an image that it
computes, `membership` has the attacks and their intervals, `findings` turns statistics into findings and has the
attack of the paper, and `audit` plans and runs it all.
Inversion: `gradient_inversion` is the attack, `similarity` compares pictures, and `inversion` attacks the updates
of a run and asks whether its virtual images copy training images.
"""
