/* loops N: three loops that ask for nothing but system calls, N times each; prints the shortest
 * time of each, in ns a turn.
 * storm N: forks for N seconds, as fast as it can; prints how often, and when it was through
 * (CLOCK_MONOTONIC, ns); then reads its input.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int storm(double seconds)
{
	double end = now() + seconds * 1e9;
	long forks = 0;
	char byte;

	for (; now() < end; forks++) {
		pid_t child = vfork(); /* a process as any other, without the cost of a copy */

		if (!child)
			_exit(0);
		if (child < 0 || waitpid(child, NULL, 0) != child)
			return 1;
	}
	printf("%ld %.0f\n", forks, now());
	fflush(stdout);
	fclose(stdout); /* who has written into a pipe and reads another may be a server */
	return read(0, &byte, 1) < 0;
}

int main(int count, char **words)
{
	int zero = open("/dev/zero", O_RDONLY), there[2], back[2];
	double best[3] = {1e9, 1e9, 1e9}, began, took;
	char byte = 0;
	int chunks;

	if (count != 3)
		return 2;
	if (!strcmp(words[1], "storm"))
		return storm(atof(words[2]));
	chunks = atoi(words[2]);
	for (int chunk = 0; chunk < chunks; chunk++) {
		began = now();
		for (int turn = 0; turn < 2000; turn++)
			syscall(SYS_getppid);
		took = (now() - began) / 2000;
		best[0] = took < best[0] ? took : best[0];
		began = now();
		for (int turn = 0; turn < 2000; turn++)
			if (read(zero, &byte, 1) != 1)
				return 1;
		took = (now() - began) / 2000;
		best[1] = took < best[1] ? took : best[1];
	}
	if (pipe(there) || pipe(back))
		return 1;
	if (!fork()) {
		close(there[1]);
		while (read(there[0], &byte, 1) == 1)
			if (write(back[1], &byte, 1) != 1)
				break;
		_exit(0);
	}
	for (int chunk = 0; chunk < chunks; chunk++) {
		began = now();
		for (int turn = 0; turn < 100; turn++)
			if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
				return 1;
		took = (now() - began) / 100;
		best[2] = took < best[2] ? took : best[2];
	}
	close(there[1]);
	wait(NULL);
	printf("%.1f %.1f %.1f\n", best[0], best[1], best[2]);
	return 0;
}
