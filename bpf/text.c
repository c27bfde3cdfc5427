/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Capture level `text`: what tracked processes print into pipes and unix sockets, and when they come
 * to the end of an input. Only what programs write is read here, never what they are given.
 */
BPF_TABLE("lru_hash", struct place, struct said, said, 1024);
/* The inputs from which a process has read something. */
struct reader {
	__u32 tgid, unused;
	__u64 inode;
};
BPF_TABLE("lru_hash", struct reader, u32, took, 16384);
BPF_PERCPU_ARRAY(blank, struct said, 1);
/* What was told of the ends that a process has read. One that asks and reads the end for ever must not
 * keep the ring from those who fork.
 */
struct heard {
	__u64 start;       /* of the process: its number may be used again */
	__u64 said;        /* when it had written last: ns, CLOCK_MONOTONIC */
	__u32 times;
	__u32 unused;
};
BPF_TABLE("lru_hash", u32, struct heard, heard, 4096);
#define HEARD_MAX 16       /* ends told of one process */

#define S_IFREG 0100000
#define S_IFDIR 0040000
#define PARTS 4            /* of a vector are looked at, the last ones */
#define TTY_HUPPED 18      /* include/linux/tty.h: bit of tty_struct.flags */

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

/* Append to what was said; length may be 0. */
static inline __attribute__((always_inline)) void keep(struct said *said, __u64 address,
						       __u64 length)
{
	__u64 chunk = length > SAID_CHUNK ? SAID_CHUNK : length, at, over;

	if (!length)
		return;
	at = said->kept & (SAID_BYTES - 1);
	if (bpf_probe_read_user(&said->text[at], chunk, (void *)(address + length - chunk)))
		return;
	over = at + chunk;
	if (over > SAID_BYTES) {
		over -= SAID_BYTES;
		if (over <= SAID_CHUNK)
			bpf_probe_read_kernel(said->text, over, &said->text[SAID_BYTES]);
	}
	said->kept += chunk;
	said->total += length;
	said->tgid = bpf_get_current_pid_tgid() >> 32;
	said->time = bpf_ktime_get_ns();
}

int on_write(struct enter *ctx)
{
	struct place place = {};
	__u64 file, inode, sock, address = ctx->args[1], length = ctx->args[2], part[2], first;
	__u32 tgid = bpf_get_current_pid_tgid() >> 32, type, vector;
	struct said *said;
	int step;

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
	vector = ctx->number == NR_writev || ctx->number == NR_sendmsg;
	if (ctx->number == NR_sendmsg) {
		/* struct user_msghdr: msg_iov and msg_iovlen are its third and fourth word */
		if (bpf_probe_read_user(part, sizeof(part), (void *)(address + 16)))
			return 0;
		address = part[0];
		length = part[1];
	}
	if (vector && length > 1024)
		return 0;
	place.inode = GET(inode, inode_number);
	place.filesystem = GET(GET(inode, inode_filesystem), filesystem_device);
	said = length ? said_at(&place) : NULL;
	if (!said)
		return 0;
	if (!vector) {
		keep(said, address, length);
		return 0;
	}
	/* musl's stdio puts its buffer before a part that may be empty */
	first = length > PARTS ? length - PARTS : 0;
	for (step = 0; step < PARTS; step++) {
		if (first + step >= length ||
		    bpf_probe_read_user(part, sizeof(part),
					(void *)(address + 16 * (first + step))))
			break;
		keep(said, part[0], part[1]);
	}
	return 0;
}

/* The end of a read: at the end of the input, or with something from it. */
int on_read(struct leave *ctx)
{
	struct eof_record record = {};
	struct settings *set = setting();
	struct said *said_there;
	struct reader reader = {};
	struct started *started;
	struct heard now = {}, *before;
	__u64 task, regs, file, inode, parents, tty;
	__u32 *root, yes = 1, writer = 0;
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
	/* Is it what the program was started with? A shell opens others in its place for a while. */
	started = given.lookup(&record.tgid);
	record.inherited = file && (started ? started->input == file
					    : record.root == record.tgid ||
						      file == word(GET(parents, table_files)));
	inode = file ? GET(file, file_inode) : 0;
	record.type = inode ? GET(inode, inode_mode) : S_IFREG;
	if ((record.type & TYPE) == S_IFREG || (record.type & TYPE) == S_IFDIR)
		return 0;
	record.inode = GET(inode, inode_number);
	if (ctx->result > 0) {
		reader.tgid = record.tgid;
		reader.inode = record.inode;
		took.update(&reader, &yes);
		return 0;
	}
	if (ctx->number == NR_read && !GET(regs, regs_arg2))
		return 0; /* it asked for nothing */
	if ((record.type & TYPE) == CHARACTER && names_terminal(GET(inode, inode_device))) {
		tty = GET(GET(file, file_private), tty_file_terminal);
		if (!(GET(tty, tty_flags) >> TTY_HUPPED & 1))
			return 0; /* somebody pressed ^D, or it is read without waiting (VMIN 0) */
	}
	reader.tgid = record.tgid;
	reader.inode = record.inode;
	record.took = took.lookup(&reader) != NULL;
	if (!record.inherited || record.took)
		return 0; /* it reads data, and asks nobody */
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
		if (said_there->time > now.said) {
			now.said = said_there->time;
			writer = said_there->tgid;
		}
	}
	before = heard.lookup(&record.tgid);
	if (before && before->start == record.start) {
		if (before->said == now.said || before->times >= HEARD_MAX)
			return 0;
		now.times = before->times;
	}
	if (writer != record.tgid)
		return 0; /* what stands last is not its own */
	now.start = record.start;
	now.times++;
	heard.update(&record.tgid, &now);
	if (events.ringbuf_output(&record, sizeof(record), 0))
		lost(LOST_EVENT);
	return 0;
}
