"""Tests of every package. None fails because the machine is busy: they wait for conditions, not for moments."""

PATIENCE = 600  # seconds after which something that is waited for is taken to hang
