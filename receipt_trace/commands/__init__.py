"""One module per command of the command line; each has ``main(options) -> exit code``.

Here, and only here, the core meets the exporters.
"""
