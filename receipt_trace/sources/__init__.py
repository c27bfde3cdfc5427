"""Where observations come from. Every source gives the same values (:mod:`receipt_trace.observation`)."""
