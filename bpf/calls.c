/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Attach mode `syscalls`: tracked threads tell their calls of the input family as they begin and end.
 * Reacts sooner than a snapshot and taxes the calls of everybody, so it is never the default.
 * The sets of poll and select are read from the caller's memory: a second witness, independent of the
 * saved registers and the wait queues that a snapshot goes by.
 */

struct enter {
	__u64 common;
	__s32 number;
	__u32 unused;
	__u64 args[6];
};

struct leave {
	__u64 common;
	__s32 number;
	__u32 unused;
	__s64 result;
};

#define NS_PER_MS 1000000ULL
#define TOLD_EVERY (20 * NS_PER_MS)  /* a thread that reads all the time is told of this often */
#define LONG (100 * NS_PER_MS)       /* a call that lasted this long may have been a wait */
#define TIMEOUT_MAX 0x7fffffff

#define POLLIN 0x001
#define POLLRDNORM 0x040

/* arch/x86/entry/syscalls/syscall_64.tbl */
#define NR_read 0
#define NR_write 1
#define NR_poll 7
#define NR_readv 19
#define NR_writev 20
#define NR_select 23
#define NR_sendto 44
#define NR_recvfrom 45
#define NR_sendmsg 46
#define NR_recvmsg 47
#define NR_epoll_wait 232
#define NR_pselect6 270
#define NR_ppoll 271
#define NR_epoll_pwait 281
#define NR_epoll_pwait2 441

/* A time-out in the caller's memory, in ms; `per_ms` of its fraction make one. */
static inline __attribute__((always_inline)) __s32 timeout_at(__u64 address, __u64 per_ms)
{
	__u64 time[2], ms;

	if (!address)
		return -1;
	if (bpf_probe_read_user(time, sizeof(time), (void *)address))
		return -2;
	ms = time[0] * 1000 + time[1] / per_ms;
	return ms > TIMEOUT_MAX ? TIMEOUT_MAX : ms;
}

int on_enter(struct enter *ctx)
{
	__u64 who = bpf_get_current_pid_tgid(), now, before = 0, pair;
	__u32 tgid = who >> 32, tid = who, *root = marks.lookup(&tgid);
	struct event_record event = {};
	struct settings *set = setting();
	struct call call = {}, *old;
	__s32 number = ctx->number;
	__u64 regs;
	int step;

	if (!root || !set)
		return 0;
	now = bpf_ktime_get_ns();
	old = calls.lookup(&tid);
	if (old)
		before = old->told;
	call.told = before;
	call.since = now;
	call.number = number;
	/* A call with three arguments has no more in its context: they are where all calls have them. */
	regs = GET(bpf_get_current_task(), task_stack) + set->regs;
	call.args[0] = GET(regs, regs_arg0);
	call.args[1] = GET(regs, regs_arg1);
	call.args[2] = GET(regs, regs_arg2);
	call.args[3] = GET(regs, regs_arg3);
	call.args[4] = GET(regs, regs_arg4);
	call.args[5] = GET(regs, regs_arg5);
	call.timeout = -1;
	if (number == NR_poll || number == NR_ppoll) {
		call.timeout = number == NR_poll ? (__s32)call.args[2]
						 : timeout_at(call.args[2], NS_PER_MS);
		if (call.timeout < -1)
			call.timeout = number == NR_poll ? -1 : -2;
		call.count = call.args[1] > CALL_FDS ? -1 : call.args[1];
		for (step = 0; step < CALL_FDS; step++) {
			if (step >= call.args[1])
				break;
			/* struct pollfd: the descriptor, then the events */
			if (bpf_probe_read_user(&pair, sizeof(pair),
						(void *)(call.args[0] + 8 * step)))
				call.count = -1;
			call.fds[step] = pair >> 32 & (POLLIN | POLLRDNORM) ? pair : -1;
		}
	} else if (number == NR_select || number == NR_pselect6) {
		call.timeout = timeout_at(call.args[4], number == NR_select ? 1000 : NS_PER_MS);
		/* the first word of the set: of a longer one nothing is known */
		if (call.args[0] > 64 ||
		    (call.args[1] && bpf_probe_read_user(&call.set, sizeof(call.set),
							 (void *)call.args[1])))
			call.count = -1;
		if (call.args[0] < 64)
			call.set &= (1ULL << (call.args[0] & 63)) - 1;
	} else if (number == NR_epoll_wait || number == NR_epoll_pwait) {
		call.timeout = (__s32)call.args[3] < 0 ? -1 : (__s32)call.args[3];
	} else if (number == NR_epoll_pwait2) {
		call.timeout = timeout_at(call.args[3], NS_PER_MS);
	} else {
		call.count = 1;
		call.fds[0] = call.args[0];
	}
	if (now - before > TOLD_EVERY) {
		call.told = now;
		event.tgid = tgid;
		event.parent = *root;
		event.status = number;
		tell(&event, RECORD_CALL);
	}
	if (calls.update(&tid, &call))
		lost(LOST_CALL);
	return 0;
}

int on_leave(struct leave *ctx)
{
	__u64 who = bpf_get_current_pid_tgid();
	__u32 tgid = who >> 32, tid = who, *root = marks.lookup(&tgid);
	struct event_record event = {};
	struct call *call;

	if (!root)
		return 0;
	call = calls.lookup(&tid);
	if (!call)
		return 0;
	if (bpf_ktime_get_ns() - call->since > LONG) {
		event.tgid = tgid;
		event.parent = *root;
		event.status = -1;
		tell(&event, RECORD_CALL);
	}
	calls.delete(&tid);
	return 0;
}
