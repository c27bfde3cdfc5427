"""The kernel boundary: build the programs in ``bpf/``, load them, speak with them.

``build`` runs in a process of its own, perhaps under the system's interpreter, and
so it and what it imports (``btf``, ``fields``, ``headers``) need nothing but bcc and the
standard library. The rest runs in the daemon and needs no bcc.
"""
