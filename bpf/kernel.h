/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How the programs read the kernel. AT_, BYTES_, SIZE_, HAS_ and ARG_ come from the running kernel's
 * own types (receipt_trace/kernel/fields.py). Every read is checked by the helper, none
 * follows a pointer by itself, and what cannot be read is 0.
 */
#define GET(base, field) ({                                                        \
	__u64 value_ = 0;                                                          \
	bpf_probe_read_kernel(&value_, BYTES_##field, (void *)((__u64)(base) + AT_##field)); \
	value_;                                                                    \
})
#define INSIDE(base, field) ((__u64)(base) + AT_##field)

static inline __attribute__((always_inline)) __u64 word(__u64 address)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

/* include/linux/pid.h: enum pid_type */
#define GROUP 2
#define SESSION 3

/* The number of a struct pid as the initial namespace counts. */
static inline __attribute__((always_inline)) __s32 number_of(__u64 pid)
{
	__u32 number = 0;

	if (!pid)
		return -1;
	bpf_probe_read_kernel(&number, sizeof(number),
			      (void *)(pid + AT_pid_numbers + AT_upid_number));
	return number;
}

static inline __attribute__((always_inline)) __u32 device_of(__u64 tty)
{
	__u64 driver = GET(tty, tty_driver);

	return (GET(driver, driver_major) & 0xfff) << 20 |
	       ((GET(driver, driver_first) + GET(tty, tty_index)) & 0xfffff);
}

/* A task iterator's context, the same on every kernel (include/linux/bpf.h, kernel/bpf/task_iter.c). */
struct iterator {
	__u64 meta;
	struct task_struct *task;
	__u32 fd;
	__u32 unused;
	struct file *file;
};

/* seq_num of struct bpf_iter_meta */
#define FIRST(ctx) (!((__u64 *)((struct iterator *)(ctx))->meta)[2])

#define TELL(ctx, record, bytes) \
	bpf_seq_write((struct seq_file *)*(__u64 *)((struct iterator *)(ctx))->meta, record, bytes)
