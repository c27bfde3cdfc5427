"""Litmus: how good is it, on commands nobody tuned for.

A catalogue of commands that ask and of commands that do not (one TOML file for each
family of programs), a runner, an oracle that shares no code with the product, and a
report. Everything runs on this machine, from packages, on loopback.
"""
