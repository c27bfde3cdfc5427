/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Iterators: a picture of the tracked processes, read as a file. They run in the reader and hook
 * nobody. Nothing is locked, so a queue may change while it is walked: every loop is bounded,
 * and who reads believes only what two pictures agree on.
 */

struct settings {
	__u64 regs;        /* from a thread's stack to its saved registers; found by calibration */
	__u64 epoll;       /* address of the file operations of an epoll set */
	__u32 calls;       /* attach mode syscalls: calls are told by themselves */
	__u32 unused;
};
BPF_ARRAY(settings, struct settings, 1);

/* Process number to what its tree is marked with (kept exact by lifecycle.c). */
BPF_HASH(marks, u32, u32, 65536);
/* Processes each child of which is the root of a tree: harnesses, and shells that live on. */
BPF_HASH(nurses, u32, u32, 1024);
/* Processes whose descriptors are wanted, for the time of one look. */
BPF_HASH(wanted, u32, u32, 4096);
/* Threads whose wait set is wanted: the address of the poll's table, or of the epoll set. */
struct question {
	__u64 table, set;
};
BPF_HASH(questions, u32, struct question, 4096);
/* What a thread's own call has told (calls.c). */
#define CALL_FDS 16
struct call {
	__u64 args[6];
	__u64 since;       /* ns, CLOCK_MONOTONIC */
	__u64 told;        /* when it was last told: ns, CLOCK_MONOTONIC */
	__s32 number;
	__s32 timeout;     /* ms; -1 none, -2 not known */
	__u64 set;         /* a select's: bit N for descriptor N */
	__s32 fds[CALL_FDS]; /* what else it waits to read; -1 nothing */
	__s32 count;       /* of these; -1 not known */
	__u32 unused;
};
BPF_HASH(calls, u32, struct call, 16384);
BPF_PERCPU_ARRAY(scratch, struct text_record, 1);

#define QUEUE_ENTRIES 64   /* of one object; more is a crowd nobody asks in */
#define POLL_PAGE_ENTRIES 64
#define TREE_STEPS 192     /* enough for 64 files in an epoll set */

#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010
#define PF_USER_WORKER 0x00004000
#define PF_KTHREAD 0x00200000
#define TS_COMPAT 2

static inline __attribute__((always_inline)) struct settings *setting(void)
{
	int zero = 0;

	return settings.lookup(&zero);
}

static inline __attribute__((always_inline)) void tell_now(struct iterator *ctx)
{
	struct now_record now = {};

	now.kind = RECORD_NOW;
	now.size = sizeof(now);
	now.monotonic = bpf_ktime_get_ns();
#if HAS_task_arrived
	now.arrived = GET(bpf_get_current_task(), task_arrived);
#endif
	TELL(ctx, &now, sizeof(now));
}

/* Who is blocked, runs, has ended: one record for each thread of the marked processes. */
int snapshot_threads(struct iterator *ctx)
{
	struct thread_record record = {};
	struct member_record member = {};
	struct task_struct *task = ctx->task;
	struct settings *set;
	struct call *call = NULL;
	__u64 signal, regs;
	__u32 tgid, *root, flags;
	int step;

	if (FIRST(ctx))
		tell_now(ctx);
	if (!task)
		return 0;
	tgid = GET(task, task_tgid);
	root = marks.lookup(&tgid);
	set = setting();
	if (!root || !set)
		return 0;
	record.kind = RECORD_THREAD;
	record.size = sizeof(record);
	record.root = *root;
	record.tgid = tgid;
	record.tid = GET(task, task_pid);
	record.task = (__u64)task;
	record.start = GET(GET(task, task_leader), task_start);
	record.runs = GET(task, task_voluntary) + GET(task, task_involuntary);
	record.cpu = GET(task, task_cpu);
	record.state = GET(task, task_state) | GET(task, task_exit_state);
	signal = GET(task, task_signal);
	if (record.tid == tgid) {
		record.ended_cpu = GET(signal, signal_cpu) + GET(signal, signal_children_user) +
				   GET(signal, signal_children_system);
		record.status = GET(task, task_exit_code);
	}
#if HAS_task_arrived
	record.arrived = GET(task, task_arrived);
#endif
#if HAS_task_read
	record.consumed = GET(task, task_read);
#endif
#if HAS_task_written
	record.written = GET(task, task_written);
#endif
#if HAS_signal_written
	if (record.tid == tgid)
		record.written += GET(signal, signal_written);
#endif
	flags = GET(task, task_flags);
	if (flags & (PF_IO_WORKER | PF_USER_WORKER | PF_KTHREAD))
		record.flags |= THREAD_WORKER;
#if HAS_task_narrow
	if (GET(task, task_narrow) & TS_COMPAT)
		record.flags |= THREAD_NARROW;
#endif
	/* One that is on its way out is not blocked any more, and not gone yet. */
	if (!record.state || (flags & PF_EXITING && !GET(task, task_exit_state)))
		record.flags |= THREAD_RUNS;
	record.number = -1;
	regs = GET(task, task_stack) + set->regs;
	if (set->calls) {
		call = calls.lookup(&record.tid);
		if (call) {
			record.fresh = 1;
			record.number = call->number;
			record.timeout = call->timeout;
			__builtin_memcpy(record.args, call->args, sizeof(record.args));
		}
	}
	if (!record.fresh && record.flags & THREAD_NARROW) {
		record.number = GET(regs, regs_number);
		record.args[0] = GET(regs, narrow_arg0);
		record.args[1] = GET(regs, narrow_arg1);
		record.args[2] = GET(regs, regs_arg2);
		record.args[3] = GET(regs, regs_arg1);
		record.args[4] = GET(regs, regs_arg0);
		record.args[5] = GET(regs, narrow_arg5);
	} else if (!record.fresh) {
		record.number = GET(regs, regs_number);
		record.args[0] = GET(regs, regs_arg0);
		record.args[1] = GET(regs, regs_arg1);
		record.args[2] = GET(regs, regs_arg2);
		record.args[3] = GET(regs, regs_arg3);
		record.args[4] = GET(regs, regs_arg4);
		record.args[5] = GET(regs, regs_arg5);
	}
	TELL(ctx, &record, sizeof(record));
	if (!call)
		return 0;
	member.kind = RECORD_MEMBER;
	member.size = sizeof(member);
	member.tid = record.tid;
	if (call->count < 0) {
		member.fd = MEMBERS_GO_ON;
		TELL(ctx, &member, sizeof(member));
	}
	for (step = 0; step < CALL_FDS; step++) {
		member.fd = call->fds[step];
		if (step < call->count && member.fd >= 0)
			TELL(ctx, &member, sizeof(member));
	}
	if (!call->set)
		return 0;
	/* Before 6.7 a loop may not fall through into its own beginning, as clang lays this one out. */
	#pragma clang loop unroll(full)
	for (step = 0; step < 64; step++) {
		member.fd = step;
		if (call->set >> step & 1)
			TELL(ctx, &member, sizeof(member));
	}
	return 0;
}

/* Who a wanted process is. */
int snapshot_processes(struct iterator *ctx)
{
	struct process_record record = {};
	struct task_struct *task = ctx->task;
	__u64 signal, pids, tty, sighand, handler;
	__u32 tgid;
	int number;

	if (!task)
		return 0;
	tgid = GET(task, task_tgid);
	if (!wanted.lookup(&tgid))
		return 0;
	if (GET(task, task_pid) != tgid)
		return 0;
	record.kind = RECORD_PROCESS;
	record.size = sizeof(record);
	record.tgid = tgid;
	record.parent = GET(GET(task, task_parent), task_tgid);
	record.start = GET(task, task_start);
	record.uid = GET(GET(task, task_cred), cred_uid);
	bpf_probe_read_kernel(record.comm, sizeof(record.comm), (void *)INSIDE(task, task_comm));
	signal = GET(task, task_signal);
	pids = INSIDE(signal, signal_pids);
	record.group = number_of(word(pids + 8 * GROUP));
	record.session = number_of(word(pids + 8 * SESSION));
	record.foreground = -1;
	tty = GET(signal, signal_terminal);
	if (tty) {
		record.terminal = device_of(tty);
		record.foreground = number_of(GET(tty, tty_foreground));
	}
	sighand = GET(task, task_sighand);
	if (sighand) {
		for (number = 0; number < 64; number++) {
			handler = GET(INSIDE(sighand, sighand_action) + number * SIZE_k_sigaction,
				      action_handler);
			if (handler == 1)
				record.ignored |= 1ULL << number;
			else if (handler)
				record.caught |= 1ULL << number;
		}
	}
	TELL(ctx, &record, sizeof(record));
	return 0;
}

#define TYPE 0170000
#define FIFO 0010000
#define CHARACTER 0020000
#define SOCKET 0140000
#define AF_UNIX 1

/* Documentation/admin-guide/devices.txt */
static inline __attribute__((always_inline)) int names_terminal(__u32 device)
{
	__u32 major = device >> 20;

	return (major >= 136 && major < 144) || major == 4 || major == 204 || major == 229 ||
	       (major == 5 && (device & 0xfffff) < 3);
}

#define PTMX (5 << 20 | 2)

/* Every descriptor of the wanted processes, and who waits at what they name. */
int snapshot_files(struct iterator *ctx)
{
	struct file_record record = {};
	struct waiter_record waiter = {};
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct settings *set = setting();
	__u64 inode, queue = 0, link, entry, sock, other, slot;
	__u32 tgid;
	int step;

	if (!task || !file || !set)
		return 0;
	tgid = GET(task, task_tgid);
	if (!wanted.lookup(&tgid))
		return 0;
	inode = GET(file, file_inode);
	record.kind = RECORD_FILE;
	record.size = sizeof(record);
	record.tgid = tgid;
	record.fd = ctx->fd;
	record.file = (__u64)file;
	record.operations = GET(file, file_operations);
	record.mode = GET(file, file_mode) & 3;
	record.type = GET(inode, inode_mode);
	record.device = GET(inode, inode_device);
	record.inode = GET(inode, inode_number);
	record.filesystem = GET(GET(inode, inode_filesystem), filesystem_device);
	if ((record.type & TYPE) == CHARACTER && names_terminal(record.device)) {
		record.object = GET(GET(file, file_private), tty_file_terminal);
		other = GET(record.object, tty_link);
		record.terminal = device_of(record.device == PTMX ? other : record.object);
#if HAS_ldisc_head
		/* What a slave prints arrives in the line discipline of its master. */
		if (record.device != PTMX && other)
			record.output = GET(GET(other, tty_discipline), ldisc_head);
#endif
#if HAS_ldisc_tail
		if (record.device != PTMX)
			record.input = GET(GET(record.object, tty_discipline), ldisc_tail);
#endif
		queue = INSIDE(record.object, tty_queue);
	} else if ((record.type & TYPE) == FIFO) {
		record.object = GET(file, file_private);
		record.writers = GET(record.object, pipe_writers);
		/* The place of the last byte moves with every write and never with a read. */
		record.output = GET(record.object, pipe_head);
		slot = GET(record.object, pipe_buffers) +
		       ((record.output - 1) & (GET(record.object, pipe_slots) - 1)) * SIZE_pipe_buffer;
		record.output = record.output << 32 |
				(__u32)(GET(slot, buffer_offset) + GET(slot, buffer_length));
		record.input = GET(record.object, pipe_tail);
		slot = GET(record.object, pipe_buffers) +
		       (record.input & (GET(record.object, pipe_slots) - 1)) * SIZE_pipe_buffer;
		record.input = record.input << 32 | GET(slot, buffer_offset);
		/* who polls the end for writing waits at the other queue */
		queue = record.mode & 1 ? INSIDE(record.object, pipe_queue)
					: INSIDE(record.object, pipe_write_queue);
	} else if ((record.type & TYPE) == SOCKET) {
		record.object = GET(file, file_private);
		sock = GET(record.object, socket_sock);
		record.family = GET(sock, sock_family);
		record.state = GET(sock, sock_state);
		if (record.family == AF_UNIX) {
			other = GET(sock, unix_peer);
			other = other ? GET(other, sock_socket) : 0;
			other = other ? GET(other, socket_file) : 0;
			if (other)
				record.peer = GET(GET(other, file_inode), inode_number);
		}
		queue = INSIDE(record.object, socket_queue);
	} else if (record.operations == set->epoll) {
		record.object = GET(file, file_private);
		queue = INSIDE(record.object, set_queue);
	}
	TELL(ctx, &record, sizeof(record));
	if (!record.object)
		return 0;
	waiter.kind = RECORD_WAITER;
	waiter.size = sizeof(waiter);
	waiter.tgid = tgid;
	waiter.object = record.object;
	link = GET(queue, queue_first);
	for (step = 0; step < QUEUE_ENTRIES; step++) {
		if (!link || link == queue + AT_queue_first)
			break;
		entry = link - AT_entry_link;
		waiter.private = GET(entry, entry_private);
		if (waiter.private) {
			waiter.behind = GET(waiter.private, poll_task);
			waiter.waiter = GET(waiter.private, task_tgid);
			waiter.poller = GET(waiter.behind, task_tgid);
		} else { /* an epoll set's: the entry is part of an eppoll_entry */
			other = GET(entry - AT_hook_entry, hook_item);
			waiter.behind = GET(other, item_set);
			waiter.waiter = waiter.poller = 0;
		}
		TELL(ctx, &waiter, sizeof(waiter));
		link = word(link);
	}
	return 0;
}

/* Where a walk is, and where it ends or came from. In a map, because the verifier forgets what it knew
 * of a value that it reads from there, and so takes all turns of a loop for the same.
 */
struct walk {
	__u64 at, other;
};
BPF_PERCPU_ARRAY(walks, struct walk, 1);

/* The files that a blocked poll or select waits for, as the kernel itself keeps them. */
int snapshot_polls(struct iterator *ctx)
{
	struct member_record record = {};
	struct task_struct *task = ctx->task;
	struct question *asked;
	struct walk *walk;
	__u64 table, page;
	__u32 tid;
	int step, zero = 0;

	if (!task)
		return 0;
	tid = GET(task, task_pid);
	asked = questions.lookup(&tid);
	walk = walks.lookup(&zero);
	if (!asked || !walk)
		return 0;
	table = asked->table;
	if (!table || GET(table, poll_task) != (__u64)task)
		return 0;
	record.kind = RECORD_MEMBER;
	record.size = sizeof(record);
	record.tid = tid;
	record.fd = -1;
	walk->at = INSIDE(table, poll_inline);
	walk->other = walk->at + (__u32)GET(table, poll_inline_used) * SIZE_poll_table_entry;
	for (step = 0; step < BYTES_poll_inline / SIZE_poll_table_entry; step++) {
		if (walk->at >= walk->other)
			break;
		record.file = GET(walk->at, watched_file);
		record.events = GET(walk->at, watched_events);
		TELL(ctx, &record, sizeof(record));
		walk->at += SIZE_poll_table_entry;
	}
	page = GET(table, poll_page);
	if (!page)
		return 0;
	walk->at = INSIDE(page, page_entries);
	walk->other = GET(page, page_free);
	for (step = 0; step < POLL_PAGE_ENTRIES; step++) {
		if (walk->at >= walk->other)
			break;
		record.file = GET(walk->at, watched_file);
		record.events = GET(walk->at, watched_events);
		TELL(ctx, &record, sizeof(record));
		walk->at += SIZE_poll_table_entry;
	}
	if (GET(page, page_next)) {
		record.fd = MEMBERS_GO_ON;
		TELL(ctx, &record, sizeof(record));
	}
	return 0;
}

/* The files in an epoll set: a red-black tree, walked along its own links. */
int snapshot_epolls(struct iterator *ctx)
{
	struct member_record record = {};
	struct task_struct *task = ctx->task;
	struct question *asked;
	struct walk *walk;
	__u64 node, left, right, parent, item;
	__u32 tid;
	int step, zero = 0;

	if (!task)
		return 0;
	tid = GET(task, task_pid);
	asked = questions.lookup(&tid);
	walk = walks.lookup(&zero);
	if (!asked || !walk || !asked->set)
		return 0;
	record.kind = RECORD_MEMBER;
	record.size = sizeof(record);
	record.tid = tid;
	walk->at = GET(asked->set, set_root);
	walk->other = 0;
	for (step = 0; step < TREE_STEPS; step++) {
		node = walk->at;
		if (!node)
			return 0;
		left = GET(node, node_left);
		right = GET(node, node_right);
		parent = GET(node, node_parent) & ~3ULL;
		if (walk->other == parent) { /* from above */
			item = node - AT_item_node;
			record.fd = GET(item, item_number);
			record.file = GET(item, item_file);
			record.events = GET(item, item_events);
			TELL(ctx, &record, sizeof(record));
			walk->at = left ? left : right ? right : parent;
		} else {
			walk->at = walk->other == left && right ? right : parent;
		}
		walk->other = node;
	}
	record.fd = MEMBERS_GO_ON;
	TELL(ctx, &record, sizeof(record));
	return 0;
}

/* The modes of a terminal that a wanted process reads, and what was last printed on it. */
int snapshot_texts(struct iterator *ctx)
{
	struct text_record *record;
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	__u64 tty, other, discipline;
	__u32 tgid, device;
	int zero = 0;

	if (!task || !file)
		return 0;
	tgid = GET(task, task_tgid);
	record = scratch.lookup(&zero);
	if (!record || !wanted.lookup(&tgid))
		return 0;
	device = GET(GET(file, file_inode), inode_device);
	if ((GET(GET(file, file_inode), inode_mode) & TYPE) != CHARACTER || device == PTMX ||
	    !names_terminal(device))
		return 0;
	tty = GET(GET(file, file_private), tty_file_terminal);
	__builtin_memset(record, 0, sizeof(*record) - TEXT_BYTES);
	record->kind = RECORD_TEXT;
	record->size = sizeof(*record);
	record->tgid = tgid;
	record->fd = ctx->fd;
	record->object = tty;
	record->modes = GET(tty, tty_modes);
	record->rows = GET(tty, tty_rows);
	record->columns = GET(tty, tty_columns);
#if HAS_ldisc_head && HAS_ldisc_buffer
	/* What a slave prints arrives in the line discipline of its master; what is typed never does. */
	other = GET(tty, tty_link);
	discipline = other ? GET(other, tty_discipline) : 0;
	if (discipline) {
		record->head = GET(discipline, ldisc_head);
		record->has = !bpf_probe_read_kernel(record->text, TEXT_BYTES,
						     (void *)INSIDE(discipline, ldisc_buffer));
	}
#endif
	TELL(ctx, record, sizeof(*record));
	return 0;
}
