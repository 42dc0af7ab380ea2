"""Engines only move messages between the two halves of a method.

server    the server's half of every run: enrolment, and rounds as in Algorithm 1
site      the sites' half: tasks with the images and the state of a site
settings  number of rounds, sampling, quorum, evaluation
validate  what the server accepts from a site
storage   what server and sites keep between rounds, and the updates of one round
wire      messages and states as bytes
registry  the engines: `loop`, and `pool` (with `process`, its child processes); `flower` is in `deploy`
"""
