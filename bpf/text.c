/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Capture level `text`: what tracked processes print into pipes and unix sockets, and when they come
 * to the end of an input. Only what programs write is read here, never what they are given.
 */
BPF_TABLE("lru_hash", struct place, struct said, said, 1024);
/* The input from which a process has last read something: its inode. */
BPF_TABLE("lru_hash", u32, u64, took, 16384);
BPF_PERCPU_ARRAY(blank, struct said, 1);

#define S_IFREG 0100000
#define S_IFDIR 0040000

static inline __attribute__((always_inline)) __u64 own_file(__u32 fd)
{
	__u64 table = GET(GET(bpf_get_current_task(), task_files), files_table);

	if (fd >= GET(table, table_max))
		return 0;
	return word(GET(table, table_files) + 8 * (__u64)fd);
}

static inline __attribute__((always_inline)) struct said *said_at(struct place *place)
{
	struct said *found = said.lookup(place), *empty;
	int zero = 0;

	if (found)
		return found;
	empty = blank.lookup(&zero);
	if (empty)
		said.update(place, empty);
	return said.lookup(place);
}

int on_write(struct enter *ctx)
{
	struct place place = {};
	__u64 file, inode, sock, address = ctx->args[1], length = ctx->args[2], part[2];
	__u64 chunk, at, over;
	__u32 tgid = bpf_get_current_pid_tgid() >> 32, type;
	struct said *said;

	if (!marks.lookup(&tgid))
		return 0;
	file = own_file(ctx->args[0]);
	if (!file)
		return 0;
	inode = GET(file, file_inode);
	type = GET(inode, inode_mode) & TYPE;
	if (type == SOCKET) {
		sock = GET(GET(file, file_private), socket_sock);
		if (GET(sock, sock_family) != AF_UNIX)
			return 0;
	} else if (type == CHARACTER) {
		if (!names_terminal(GET(inode, inode_device)))
			return 0;
	} else if (type != FIFO && (ctx->args[0] != 1 && ctx->args[0] != 2)) {
		return 0; /* of files only those that are an output */
	}
	if (ctx->number == NR_sendmsg) {
		/* struct user_msghdr: msg_iov and msg_iovlen are its third and fourth word */
		if (bpf_probe_read_user(part, sizeof(part), (void *)(address + 16)))
			return 0;
		address = part[0];
		length = part[1];
	}
	if (ctx->number == NR_writev || ctx->number == NR_sendmsg) {
		/* the last part; C libraries put nothing after it */
		if (!length || length > 1024 ||
		    bpf_probe_read_user(part, sizeof(part), (void *)(address + 16 * (length - 1))))
			return 0;
		address = part[0];
		length = part[1];
	}
	place.inode = GET(inode, inode_number);
	place.filesystem = GET(GET(inode, inode_filesystem), filesystem_device);
	said = length ? said_at(&place) : NULL;
	if (!said)
		return 0;
	chunk = length > SAID_CHUNK ? SAID_CHUNK : length;
	at = said->kept & (SAID_BYTES - 1);
	if (bpf_probe_read_user(&said->text[at], chunk, (void *)(address + length - chunk)))
		return 0;
	over = at + chunk;
	if (over > SAID_BYTES) {
		over -= SAID_BYTES;
		if (over <= SAID_CHUNK)
			bpf_probe_read_kernel(said->text, over, &said->text[SAID_BYTES]);
	}
	said->kept += chunk;
	said->total += length;
	said->tgid = tgid;
	said->time = bpf_ktime_get_ns();
	return 0;
}

/* The end of a read: at the end of the input, or with something from it. */
int on_read(struct leave *ctx)
{
	struct eof_record record = {};
	struct settings *set = setting();
	struct said *said_there;
	__u64 task, regs, file, inode, parents, *before;
	__u32 *root;
	int stream;

	record.tgid = bpf_get_current_pid_tgid() >> 32;
	root = marks.lookup(&record.tgid);
	if (ctx->result < 0 || !set || !root)
		return 0;
	record.root = *root;
	task = bpf_get_current_task();
	regs = GET(task, task_stack) + set->regs;
	record.fd = GET(regs, regs_arg0);
	file = own_file(record.fd);
	parents = GET(GET(GET(task, task_parent), task_files), files_table);
	record.inherited = file && file == word(GET(parents, table_files));
	inode = file ? GET(file, file_inode) : 0;
	record.type = inode ? GET(inode, inode_mode) : S_IFREG;
	if ((record.type & TYPE) == S_IFREG || (record.type & TYPE) == S_IFDIR)
		return 0;
	record.inode = GET(inode, inode_number);
	if (ctx->result > 0) {
		took.update(&record.tgid, &record.inode);
		return 0;
	}
	if (ctx->number == NR_read && !GET(regs, regs_arg2))
		return 0; /* it asked for nothing */
	before = took.lookup(&record.tgid);
	record.took = before && *before == record.inode;
	record.kind = RECORD_EOF;
	record.size = sizeof(record);
	record.device = GET(inode, inode_device);
	record.start = GET(GET(task, task_leader), task_start);
	record.time = bpf_ktime_get_ns();
	bpf_get_current_comm(record.comm, sizeof(record.comm));
	for (stream = 0; stream < 2; stream++) {
		file = own_file(stream + 1);
		if (!file)
			continue;
		inode = GET(file, file_inode);
		record.where[stream].inode = GET(inode, inode_number);
		record.where[stream].filesystem =
			GET(GET(inode, inode_filesystem), filesystem_device);
		said_there = said.lookup(&record.where[stream]);
		if (!said_there)
			continue;
		record.said_time[stream] = said_there->time;
		record.said_kept[stream] = said_there->kept;
		record.said_tgid[stream] = said_there->tgid;
	}
	if (events.ringbuf_output(&record, sizeof(record), 0))
		lost(LOST_EVENT);
	return 0;
}
