"""Become a command on the terminal whose master is descriptor 3, as node-pty's fork does.

Started in a session of its own. The command's environment is in a variable, as JSON, so
that nothing it marks is seen on this program. Usage: pty_start.py COMMAND [ARG…]
"""

import fcntl
import json
import os
import struct
import sys
import termios

MASTER = 3
UNLOCK, NUMBER = 0x40045431, 0x80045430  # TIOCSPTLCK and TIOCGPTN, ioctl_tty(2)

fcntl.ioctl(MASTER, UNLOCK, struct.pack("i", 0))
number = struct.unpack("i", fcntl.ioctl(MASTER, NUMBER, bytes(4)))[0]
slave = os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY)
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
for stream in (0, 1, 2):
    os.dup2(slave, stream)
os.close(MASTER)
os.close(slave)
os.execvpe(sys.argv[1], sys.argv[1:], json.loads(os.environ["STAND_IN_ENVIRONMENT"]))
