"""``receipt-trace doctor``: what this host allows."""

import argparse
import json
import sys

from receipt_trace import doctor
from receipt_trace.errors import UnobservableError

_SIGNS = {"yes": "✓", "partly": "~", "no": "✗"}


def main(options: argparse.Namespace) -> int:
    """Print the findings; 69 when nothing could be observed."""
    report = doctor.examine()
    if options.json:
        json.dump(report.to_dict(), sys.stdout, indent=2)
        print()
    else:
        for check in report.checks:
            print(f"{_SIGNS[check.state]} {check.what}: {check.seen}")
            if check.state != "yes":
                print(f"    instead: {check.instead}")
                print(f"    to get more: {check.remedy}")
        print(f"\nsource: {report.source or 'none'}")
    if not report.usable:
        raise UnobservableError(f"nothing can be observed: {report.reason}")
    return 0
