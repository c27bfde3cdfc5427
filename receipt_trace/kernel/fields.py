"""Every place where kernels differ: the fields, sizes and prototypes the programs use.

A field is found by name in the running kernel's BTF, with the names it had before, and
its size is taken along, for that changes too. Nothing is decided by a version
number. The C programs see ``AT_name`` and ``BYTES_name`` for a field, ``SIZE_name``
for a struct, ``ARG_name`` for an argument, and ``HAS_name`` for what may be missing.
"""

from typing import Final, NamedTuple

from receipt_trace.kernel.btf import Btf


class Need(NamedTuple):
    """A field by the names kernels have for it, newest first.

    ``lost``: what cannot be done without it; empty where nothing can.
    """

    name: str
    paths: tuple[str, ...]
    lost: str = ""


def _need(name: str, *paths: str, lost: str = "") -> Need:
    return Need(name, paths, lost)


FIELDS: Final = (
    # include/linux/sched.h
    _need("task_state", "task_struct.__state", "task_struct.state"),  # 2f064a59a11f, 5.14
    _need("task_exit_state", "task_struct.exit_state"),
    _need("task_exit_code", "task_struct.exit_code"),
    _need("task_stack", "task_struct.stack"),
    _need("task_flags", "task_struct.flags"),
    _need("task_pid", "task_struct.pid"),
    _need("task_tgid", "task_struct.tgid"),
    _need("task_comm", "task_struct.comm"),
    _need("task_parent", "task_struct.real_parent"),
    _need("task_leader", "task_struct.group_leader"),
    _need("task_start", "task_struct.start_boottime", "task_struct.real_start_time"),  # 5.5
    _need("task_signal", "task_struct.signal"),
    _need("task_sighand", "task_struct.sighand"),
    _need("task_memory", "task_struct.mm"),
    _need("task_files", "task_struct.files"),
    _need("task_cred", "task_struct.cred"),
    _need("task_voluntary", "task_struct.nvcsw"),
    _need("task_involuntary", "task_struct.nivcsw"),
    _need("task_cpu", "task_struct.se.sum_exec_runtime"),
    _need(
        "task_arrived", "task_struct.sched_info.last_arrival",
        lost="when a thread last ran (CONFIG_SCHED_INFO): quiet begins when it is first seen",
    ),
    _need(
        "task_read", "task_struct.ioac.rchar",
        lost="bytes read by a thread (CONFIG_TASK_XACCT): a wait ends as expired, not answered",
    ),
    _need(
        "task_written", "task_struct.ioac.wchar",
        lost="bytes written by a thread (CONFIG_TASK_XACCT): a server may be taken for a question",
    ),
    _need(
        "task_narrow", "task_struct.thread_info.status",
        lost="32-bit programs (only x86 tells them): not told apart",
    ),
    # include/linux/sched/signal.h, pid.h, cred.h
    _need("signal_terminal", "signal_struct.tty"),
    _need("signal_live", "signal_struct.live.counter"),
    _need("signal_exit_code", "signal_struct.group_exit_code"),
    _need("signal_pids", "signal_struct.pids"),
    _need("signal_cpu", "signal_struct.sum_sched_runtime"),
    _need("signal_written", "signal_struct.ioac.wchar", lost="bytes written by ended threads"),
    _need("signal_children_user", "signal_struct.cutime"),
    _need("signal_children_system", "signal_struct.cstime"),
    _need("pid_numbers", "pid.numbers"),
    _need("upid_number", "upid.nr"),
    _need("sighand_action", "sighand_struct.action"),
    _need("action_handler", "k_sigaction.sa.sa_handler"),
    _need("cred_uid", "cred.uid"),
    # include/linux/mm_types.h
    _need("memory_arguments", "mm_struct.arg_start"),
    _need("memory_arguments_end", "mm_struct.arg_end"),
    _need("memory_environment", "mm_struct.env_start"),
    _need("memory_environment_end", "mm_struct.env_end"),
    # include/linux/fdtable.h, fs.h
    _need("files_table", "files_struct.fdt"),
    _need("table_max", "fdtable.max_fds"),
    _need("table_files", "fdtable.fd"),
    _need("file_inode", "file.f_inode"),
    _need("file_operations", "file.f_op"),
    _need("file_private", "file.private_data"),
    _need("file_mode", "file.f_mode"),
    _need("inode_mode", "inode.i_mode"),
    _need("inode_device", "inode.i_rdev"),
    _need("inode_number", "inode.i_ino"),
    _need("inode_filesystem", "inode.i_sb"),
    _need("filesystem_device", "super_block.s_dev"),
    # include/linux/tty.h, tty_driver.h; drivers/tty/n_tty.c
    _need("tty_file_terminal", "tty_file_private.tty"),
    _need("tty_driver", "tty_struct.driver"),
    _need("tty_flags", "tty_struct.flags"),
    _need("tty_index", "tty_struct.index"),
    _need("tty_modes", "tty_struct.termios.c_lflag"),
    _need("tty_rows", "tty_struct.winsize.ws_row"),
    _need("tty_columns", "tty_struct.winsize.ws_col"),
    _need("tty_discipline", "tty_struct.disc_data"),
    _need("tty_link", "tty_struct.link"),
    _need("tty_foreground", "tty_struct.ctrl.pgrp", "tty_struct.pgrp"),  # 5.16
    _need("tty_queue", "tty_struct.read_wait"),
    _need("driver_major", "tty_driver.major"),
    _need("driver_first", "tty_driver.minor_start"),
    _need("ldisc_head", "n_tty_data.read_head", lost="the text on a terminal (n_tty is a module)"),
    _need("ldisc_tail", "n_tty_data.read_tail", lost="the text on a terminal (n_tty is a module)"),
    _need("ldisc_buffer", "n_tty_data.read_buf", lost="the text on a terminal (n_tty is a module)"),
    # include/linux/pipe_fs_i.h
    _need("pipe_head", "pipe_inode_info.head"),
    _need("pipe_tail", "pipe_inode_info.tail"),
    _need("pipe_slots", "pipe_inode_info.ring_size"),
    _need("pipe_buffers", "pipe_inode_info.bufs"),
    _need("pipe_writers", "pipe_inode_info.writers"),
    _need("pipe_queue", "pipe_inode_info.rd_wait"),
    _need("pipe_write_queue", "pipe_inode_info.wr_wait"),
    _need("buffer_offset", "pipe_buffer.offset"),
    _need("buffer_length", "pipe_buffer.len"),
    # include/linux/net.h, net/sock.h, net/af_unix.h
    _need("socket_sock", "socket.sk"),
    _need("socket_file", "socket.file"),
    _need("socket_queue", "socket.wq.wait"),
    _need("sock_family", "sock.__sk_common.skc_family"),
    _need("sock_state", "sock.__sk_common.skc_state"),
    _need("sock_socket", "sock.sk_socket"),
    _need("unix_peer", "unix_sock.peer"),
    # include/linux/wait.h, poll.h; fs/eventpoll.c
    _need("queue_first", "wait_queue_head.head.next"),
    _need("entry_private", "wait_queue_entry.private"),
    _need("entry_link", "wait_queue_entry.entry"),
    _need("poll_task", "poll_wqueues.polling_task"),
    _need("poll_inline_used", "poll_wqueues.inline_index"),
    _need("poll_inline", "poll_wqueues.inline_entries"),
    _need("poll_page", "poll_wqueues.table"),
    _need("page_next", "poll_table_page.next"),
    _need("page_free", "poll_table_page.entry"),
    _need("page_entries", "poll_table_page.entries"),
    _need("watched_file", "poll_table_entry.filp"),
    _need("watched_events", "poll_table_entry.key"),  # 4 bytes everywhere
    _need("hook_entry", "eppoll_entry.wait"),
    _need("hook_item", "eppoll_entry.base"),
    _need("item_node", "epitem.rbn"),
    _need("item_set", "epitem.ep"),
    _need("item_file", "epitem.ffd.file"),
    _need("item_number", "epitem.ffd.fd"),
    _need("item_events", "epitem.event.events"),
    _need("set_queue", "eventpoll.wq"),
    _need("set_root", "eventpoll.rbr.rb_root.rb_node"),
    _need("node_parent", "rb_node.__rb_parent_color"),
    _need("node_left", "rb_node.rb_left"),
    _need("node_right", "rb_node.rb_right"),
    # arch/x86/include/asm/ptrace.h
    _need("regs_number", "pt_regs.orig_ax"),
    _need("regs_arg0", "pt_regs.di"),
    _need("regs_arg1", "pt_regs.si"),
    _need("regs_arg2", "pt_regs.dx"),
    _need("regs_arg3", "pt_regs.r10"),
    _need("regs_arg4", "pt_regs.r8"),
    _need("regs_arg5", "pt_regs.r9"),
    _need("narrow_arg0", "pt_regs.bx"),  # a 32-bit call: bx cx dx si di bp
    _need("narrow_arg1", "pt_regs.cx"),
    _need("narrow_arg5", "pt_regs.bp"),
)  # fmt: skip

STRUCTS: Final = ("pt_regs", "k_sigaction", "pipe_buffer", "poll_table_entry", "upid")

# By type, never by place: 6.15 gave the exit one a second argument, RHEL moved others.
ARGUMENTS: Final = {
    "fork_parent": ("sched_process_fork", "task_struct*", 0),
    "fork_child": ("sched_process_fork", "task_struct*", 1),
    "exec_task": ("sched_process_exec", "task_struct*", 0),
    "exit_task": ("sched_process_exit", "task_struct*", 0),
}
"""Argument to (tracepoint, type, which of that type)."""

ITERATORS: Final = ("bpf_iter_task", "bpf_iter_task_file")


class Layout(NamedTuple):
    """What was found in one kernel.

    ``definitions`` are the C macros; ``missing`` names what the programs cannot do without,
    ``lost`` what is switched off; ``functions`` are the numbers of the iterators' types.
    """

    definitions: dict[str, int]
    missing: tuple[str, ...]
    lost: tuple[str, ...]
    functions: dict[str, int]


def resolve(btf: Btf) -> Layout:
    """Look everything up in one kernel's types."""
    definitions: dict[str, int] = {}
    missing: list[str] = []
    lost: list[str] = []
    for need in FIELDS:
        found = next(filter(None, map(btf.field, need.paths)), None)
        definitions[f"HAS_{need.name}"] = int(found is not None)
        if found is not None:
            definitions[f"AT_{need.name}"] = found.at
            definitions[f"BYTES_{need.name}"] = found.size
        elif need.lost:
            lost.append(need.lost)
        else:
            missing.append(" or ".join(need.paths))
    for name in STRUCTS:
        size = btf.size(name)
        if size is None:
            missing.append(f"struct {name}")
        else:
            definitions[f"SIZE_{name}"] = size
    for name, (tracepoint, kind, which) in ARGUMENTS.items():
        kinds = btf.tracepoint(tracepoint) or []
        places = [place for place, spelled in enumerate(kinds) if spelled == kind]
        if which < len(places):
            definitions[f"ARG_{name}"] = places[which]
        else:
            missing.append(f"argument {which + 1} of type {kind} of {tracepoint}")
    functions = {}
    for name in ITERATORS:
        number = btf.function(name)
        if number is None:
            missing.append(f"function {name}")
        else:
            functions[name] = number
    return Layout(definitions, tuple(missing), tuple(dict.fromkeys(lost)), functions)
