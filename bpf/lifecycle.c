/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The only hooks there are: fork, exec and exit of processes. They keep the marks exact, so that a
 * child is tracked before it first runs, and tell what happens.
 */
BPF_RINGBUF_OUTPUT(events, 256);
/* Events and marks that did not fit: counted, so that whoever reads looks for himself. */
BPF_ARRAY(losses, u64, 3);
#define LOST_EVENT 0
#define LOST_MARK 1
#define LOST_CALL 2

static inline __attribute__((always_inline)) void lost(int which)
{
	__u64 *count = losses.lookup(&which);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static inline __attribute__((always_inline)) void tell(struct event_record *event, __u16 kind)
{
	event->kind = kind;
	event->size = sizeof(*event);
	if (events.ringbuf_output(event, sizeof(*event), 0))
		lost(LOST_EVENT);
}

/* What is known of a process since it became another program. */
struct started {
	__u64 input;       /* the file that it had for its input then */
	__u32 times;       /* that it became another one */
	__u32 unused;
};
BPF_TABLE("lru_hash", u32, struct started, given, 16384);

static inline __attribute__((always_inline)) __u64 own_file(__u32 fd)
{
	__u64 table = GET(GET(bpf_get_current_task(), task_files), files_table);

	if (fd >= GET(table, table_max))
		return 0;
	return word(GET(table, table_files) + 8 * (__u64)fd);
}

/* What the root of a tree has become. */
static inline __attribute__((always_inline)) void tell_program(__u64 task, struct started *now,
								__u64 start)
{
	struct program_record *record = events.ringbuf_reserve(sizeof(*record));
	__u64 memory = GET(task, task_memory), inode, from, length;

	if (!record) {
		lost(LOST_EVENT);
		return;
	}
	record->kind = RECORD_PROGRAM;
	record->size = sizeof(*record);
	record->tgid = GET(task, task_tgid);
	record->parent = GET(GET(task, task_parent), task_tgid);
	record->session = number_of(word(INSIDE(GET(task, task_signal), signal_pids) + 8 * SESSION));
	record->uid = GET(GET(task, task_cred), cred_uid);
	inode = now->input ? GET(now->input, file_inode) : 0;
	record->type = inode ? GET(inode, inode_mode) : 0;
	record->device = inode ? GET(inode, inode_device) : 0;
	record->times = now->times;
	record->start = start;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	from = GET(memory, memory_arguments);
	length = GET(memory, memory_arguments_end) - from;
	if (length > ARGUMENT_BYTES)
		length = ARGUMENT_BYTES;
	record->argument_bytes = length;
	if (bpf_probe_read_user(record->arguments, length, (void *)from))
		record->argument_bytes = 0;
	from = GET(memory, memory_environment);
	length = GET(memory, memory_environment_end) - from;
	if (length > ENVIRONMENT_BYTES) {
		from += length - ENVIRONMENT_BYTES;
		length = ENVIRONMENT_BYTES;
	}
	record->environment_bytes = length;
	if (bpf_probe_read_user(record->environment, length, (void *)from))
		record->environment_bytes = 0;
	events.ringbuf_submit(record, 0);
}

/* Runs in the parent, before the child is woken for the first time. */
int on_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct event_record event = {};
	__u64 parent = ctx->args[ARG_fork_parent], child = ctx->args[ARG_fork_child];
	__u32 *root, value;

	event.parent = GET(parent, task_tgid);
	event.tgid = GET(child, task_tgid);
	if (event.tgid == event.parent)
		return 0;  /* a thread */
	root = nurses.lookup(&event.parent) ? &event.tgid : marks.lookup(&event.parent);
	if (root) {
		value = *root;
		if (marks.update(&event.tgid, &value))
			lost(LOST_MARK);
	}
	event.start = GET(child, task_start);
	tell(&event, RECORD_FORK);
	return 0;
}

int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct event_record event = {};
	struct started started = {.input = own_file(0), .times = 1}, *before;
	__u64 task = ctx->args[ARG_exec_task];
	__u32 *root;

	event.tgid = GET(task, task_tgid);
	event.start = GET(GET(task, task_leader), task_start);
	before = given.lookup(&event.tgid);
	if (before)
		started.times += before->times;
	given.update(&event.tgid, &started);
	root = marks.lookup(&event.tgid);
	if (root && *root == event.tgid)
		tell_program(task, &started, event.start);
	else
		tell(&event, RECORD_EXEC);
	return 0;
}

/* Of a process only when its last thread goes, whichever that is. */
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct event_record event = {};
	__u64 task = ctx->args[ARG_exit_task], signal = GET(task, task_signal), leader;
	__u32 tid = GET(task, task_pid);

	calls.delete(&tid);
	if (GET(signal, signal_live))
		return 0;
	leader = GET(task, task_leader);
	event.tgid = GET(task, task_tgid);
	event.start = GET(leader, task_start);
	event.status = GET(signal, signal_exit_code);
	if (!event.status)
		event.status = GET(leader, task_exit_code);
	marks.delete(&event.tgid);
	given.delete(&event.tgid);
	tell(&event, RECORD_EXIT);
	return 0;
}
