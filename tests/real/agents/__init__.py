"""Stand-ins for coding agents on this kernel, and one watcher that looks at all of them.

A stand-in is a small program that reproduces the *published* shape of an agent: its name and
arguments, the environment and the standard streams of what it starts, sessions, and shells
that live on between commands. ``table.py`` is the data, ``stage.py`` runs it.
"""
