"""The third ring: real programs, real terminals, this kernel."""
