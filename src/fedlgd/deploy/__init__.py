"""Real sites over Flower: kits, the coordinator's server, the site's program, its policy and its journal."""
