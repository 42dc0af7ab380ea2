"""The tables and figures of the paper: items, stored runs, verdicts and pages."""
