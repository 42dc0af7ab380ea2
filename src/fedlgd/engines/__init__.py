"""Engines only move messages between the two halves of a method.

`server` and `site` are the two halves of every run, with `settings`. `storage` is what they keep between rounds,
`wire` turns it into bytes, and `validate` is what the server accepts. `registry` has the engines by name: `loop`,
`pool` (with `process`) and `flower` (with `messages`).
"""
