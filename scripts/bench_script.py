"""What one would write with bcc to see who reads: the thing to compare with, run by bench.py.

Runs under the system's Python, which has bcc; says ``attached`` and stays until it is ended.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from bcc import BPF

from receipt_trace.kernel.headers import write_headers

CALLS = (
    "read", "readv", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait",
    "epoll_pwait2", "recvfrom", "recvmsg",
)  # fmt: skip
TEXT = """
BPF_HASH(count, u32, u64);
static int seen(void)
{
    u32 tgid = bpf_get_current_pid_tgid() >> 32;
    count.increment(tgid);
    return 0;
}
int enter(void *ctx) { return seen(); }
int leave(void *ctx) { return seen(); }
"""

with tempfile.TemporaryDirectory() as headers:
    write_headers(Path(headers))
    os.environ["BCC_KERNEL_SOURCE"] = headers
    module = BPF(text=TEXT)
for call in CALLS:
    module.attach_tracepoint(f"syscalls:sys_enter_{call}", fn_name="enter")
    module.attach_tracepoint(f"syscalls:sys_exit_{call}", fn_name="leave")
print("attached", flush=True)
signal.pause()
