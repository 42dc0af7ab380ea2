"""The tables and figures of the paper: what is run for them, the verdicts on their claims, and their page."""
