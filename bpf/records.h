/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the programs tell: every record begins with its kind and its size in bytes. Laid out
 * without padding on every machine; receipt_trace/kernel/records.py has the same, and a test
 * compares the two. Addresses of kernel objects are identities, to be compared and never followed
 * from outside; they stay in the process that reads them.
 */
#ifndef RECEIPT_TRACE_RECORDS_H
#define RECEIPT_TRACE_RECORDS_H

enum record_kind {
	RECORD_THREAD = 1,
	RECORD_PROCESS,
	RECORD_FILE,
	RECORD_WAITER,
	RECORD_MEMBER,
	RECORD_TEXT,
	RECORD_FORK,
	RECORD_EXEC,
	RECORD_EXIT,
	RECORD_CALL,
	RECORD_EOF,
	RECORD_NOW,
	RECORD_PROGRAM,
};

/* The first of a snapshot: when it was taken, by both clocks. */
struct now_record {
	__u16 kind, size;
	__u32 unused;
	__u64 monotonic;   /* ns, CLOCK_MONOTONIC */
	__u64 arrived;     /* when the reader last got a processor: ns, scheduler's clock; 0 unknown */
};

/* One thread of a tracked process, in every snapshot. */
struct thread_record {
	__u16 kind, size;
	__u32 root;        /* what the tree was marked with */
	__u32 tgid, tid;
	__u64 task;        /* address: a wait queue entry names it */
	__u64 start;       /* of the process: ns, CLOCK_BOOTTIME */
	__u64 runs;        /* how often it was switched away from */
	__u64 cpu;         /* ns of its own */
	__u64 ended_cpu;   /* ns of ended threads and children; in the leader's record only */
	__u64 arrived;     /* when it last got a processor: ns, scheduler's clock; 0 unknown */
	__u64 consumed;    /* bytes read from files, by read(2) and its like */
	__u64 written;     /* bytes written to them; in the leader's record with those of ended threads */
	__u64 args[6];     /* valid while it is blocked in a call */
	__s32 number;      /* of the system call; -1 in none */
	__u32 state;       /* __state and exit_state */
	__u32 flags;       /* THREAD_* */
	__s32 status;      /* wait status, once it has ended */
	__u32 fresh;       /* the call was told by itself as it began (attach mode syscalls) */
	__s32 timeout;     /* fresh: of the call, ms; -1 none, -2 not known */
};

#define THREAD_NARROW 1    /* a 32-bit call: other numbers */
#define THREAD_WORKER 2    /* works for io_uring or vhost inside the kernel */
#define THREAD_RUNS 4      /* on a processor or waiting for one */

/* One process, when somebody wants to know. */
struct process_record {
	__u16 kind, size;
	__u32 tgid, parent;
	__s32 group, session, foreground;  /* numbers as the initial pid namespace counts; -1 none */
	__u32 terminal;    /* device of the controlling terminal, major << 20 | minor; 0 none */
	__u32 uid;
	__u64 start;
	__u64 ignored, caught;  /* signal masks, bit N-1 for signal N */
	char comm[16];
};

/* One open descriptor. */
struct file_record {
	__u16 kind, size;
	__u32 tgid;
	__s32 fd;
	__u32 mode;        /* f_mode: 1 readable, 2 writable */
	__u32 type;        /* i_mode */
	__u32 device;      /* of the special file it names, major << 20 | minor */
	__u32 filesystem;  /* s_dev */
	__u32 family;      /* of a socket's address */
	__u64 inode;
	__u64 file, operations, object;  /* addresses; object: tty, pipe, socket, epoll set */
	__u64 peer;        /* inode of the other end of a unix socket; 0 none */
	__u64 output;      /* moves with what is written into a pipe, or printed on a terminal */
	__u64 input;       /* moves with what is taken out of a pipe, or read from a terminal */
	__u32 terminal;    /* the terminal behind it, major << 20 | minor; 0 none */
	__u32 writers;     /* of a pipe */
	__u32 state;       /* of a socket: TCP_LISTEN and its like, include/net/tcp_states.h */
	__u32 unused;
};

/* One entry of the wait queue of an object that a descriptor names. */
struct waiter_record {
	__u16 kind, size;
	__u32 tgid;        /* whose descriptor led here */
	__u64 object;
	__u64 private;     /* a task, or the table of a poll */
	__u64 behind;      /* a poll's task, or the epoll set of a watch */
	__u32 waiter;      /* the process number if private is a task: to be confirmed */
	__u32 poller;      /* the process number if behind is one: to be confirmed */
};

/* One file that a blocked poll, select or epoll waits for; by number only when a call told it. */
struct member_record {
	__u16 kind, size;
	__u32 tid;
	__s32 fd;          /* in an epoll set; -1 otherwise; MEMBERS_GO_ON: not all were told */
	__u32 events;
	__u64 file;
};

#define MEMBERS_GO_ON (-2)

/* A terminal: its modes and the last that was printed on it. Never what is typed. */
#define TEXT_BYTES 4096
struct text_record {
	__u16 kind, size;
	__u32 tgid;
	__s32 fd;
	__u32 modes;       /* c_lflag */
	__u64 object;
	__u64 head;        /* bytes printed so far; the last one lies at (head - 1) % TEXT_BYTES */
	__u16 rows, columns;
	__u32 has;         /* whether text holds anything: 1 yes */
	__u8 text[TEXT_BYTES];
};

/* fork, exec and exit of a whole process; CALL: a tracked thread begins or leaves a long call. */
struct event_record {
	__u16 kind, size;
	__u32 tgid;        /* of the child, of who became another program, of who ended */
	__u32 parent;      /* fork: its parent; CALL: the mark of its tree */
	__s32 status;      /* exit: the wait status; CALL: number of the call, -1 when it is over */
	__u64 start;       /* of the process: ns, CLOCK_BOOTTIME */
};

/* The root of a tree has become another program: what tells whether that is a tool call, and what it
 * was, for it may be gone before anybody looks. Told in place of its exec event.
 */
#define ARGUMENT_BYTES 1024
#define ENVIRONMENT_BYTES 3072
struct program_record {
	__u16 kind, size;
	__u32 tgid, parent;
	__s32 session;
	__u32 uid;
	__u32 type;        /* of its input: i_mode; 0 none */
	__u32 device;      /* of its input, major << 20 | minor */
	__u32 argument_bytes, environment_bytes;
	__u32 times;       /* that it became another program, with this one */
	__u64 start;       /* ns, CLOCK_BOOTTIME */
	char comm[16];
	__u8 arguments[ARGUMENT_BYTES];      /* the first of them */
	__u8 environment[ENVIRONMENT_BYTES]; /* the last of it, where a harness puts its own */
};

/* The last that tracked processes wrote to an output; found by the file's place. */
#define SAID_BYTES 4096
#define SAID_CHUNK 4096
struct said {
	__u64 time;        /* of the last write: ns, CLOCK_MONOTONIC */
	__u64 total;       /* bytes written */
	__u32 kept;        /* bytes put into text so far; the last one lies at (kept - 1) % SAID_BYTES */
	__u32 tgid;        /* who wrote last */
	__u8 text[SAID_BYTES + SAID_CHUNK];
};

struct place {
	__u64 inode;
	__u32 filesystem;  /* s_dev */
	__u32 unused;
};

/* A tracked process came to the end of an input that is no regular file. `said`: what its output
 * (descriptor 1) and its error output (2) had come to then. */
struct eof_record {
	__u16 kind, size;
	__u32 tgid;
	__s32 fd;
	__u32 type;        /* i_mode */
	__u32 device;      /* major << 20 | minor */
	__u32 took;        /* 1: it has read something from this input before */
	__u64 inode;
	__u64 start;       /* of the process: ns, CLOCK_BOOTTIME */
	__u64 time;        /* ns, CLOCK_MONOTONIC */
	struct place where[2];
	__u64 said_time[2];
	__u32 said_kept[2], said_tgid[2];
	__u32 root;        /* what the tree was marked with */
	__u32 inherited;   /* 1: its parent has the same file as its input */
	char comm[16];
};
#endif
