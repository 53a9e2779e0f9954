/*
 * collectives RANKS STEPS [MODE RANK STEP]: starts RANKS processes that make STEPS collectives on one
 * communicator. In one STEP, from 0, one RANK does something else, by MODE: `skip` makes no collective,
 * `other` makes another one, `size` makes it with one element more. Every process prints
 * {"pid","rank","collectives","calls"}. With RANKS of `all`, one process has all of them, which are four.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct unique_id {
	char internal[128];
};

enum { INT8 = 0, FLOAT32 = 7, SUM = 0, MOST_RANKS = 64, ALL_RANKS = 4 };

int ncclGetUniqueId(struct unique_id *id);
int ncclCommInitRank(void **comm, int ranks, struct unique_id id, int rank);
int ncclCommInitRankScalable(void **comm, int ranks, int rank, int count, struct unique_id *ids,
			     void *config);
int ncclCommInitAll(void **comms, int devices, const int *list);
int ncclCommFinalize(void *comm);
int ncclCommDestroy(void *comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream);
int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream);
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream);
int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream);
int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream);

struct job {
	int ranks, steps;
	const char *mode;
	int odd_rank, odd_step;
};

struct made {
	int all_reduce, all_gather, broadcast, sends;
};

static int failed;

static void step(const struct job *job, int rank, int number, void *comm, struct made *made)
{
	int is_odd = rank == job->odd_rank && number == job->odd_step;
	size_t count = 1024 + (is_odd && !strcmp(job->mode, "size"));
	int kind = number % 4;

	if (is_odd && !strcmp(job->mode, "skip"))
		return;
	if (is_odd && !strcmp(job->mode, "other"))
		kind = (kind + 2) % 4;
	if (kind == 2) {
		failed |= ncclAllGather(NULL, NULL, count, INT8, comm, NULL);
		made->all_gather++;
	} else if (kind == 3) {
		failed |= ncclBroadcast(NULL, NULL, count, FLOAT32, number % job->ranks, comm, NULL);
		made->broadcast++;
		failed |= ncclGroupStart();
		failed |= ncclSend(NULL, 16, INT8, (rank + 1) % job->ranks, comm, NULL);
		failed |= ncclRecv(NULL, 16, INT8, (rank + job->ranks - 1) % job->ranks, comm, NULL);
		failed |= ncclGroupEnd();
		made->sends++;
	} else {
		failed |= ncclAllReduce(NULL, NULL, count, FLOAT32, SUM, comm, NULL);
		made->all_reduce++;
	}
}

static void print(int rank, const struct made *made)
{
	printf(
	    "{\"pid\":%d,\"rank\":%d,\"collectives\":%d,\"calls\":{\"ncclAllReduce\":%d,\"ncclAllGather\":%d,"
	    "\"ncclBroadcast\":%d,\"ncclSend\":%d,\"ncclRecv\":%d}}\n",
	    (int)getpid(), rank, made->all_reduce + made->all_gather + made->broadcast, made->all_reduce,
	    made->all_gather, made->broadcast, made->sends, made->sends);
	fflush(stdout);
}

static int run_rank(const struct job *job, int rank, const char *digits)
{
	struct unique_id id;
	struct made made = {0};
	void *comm;

	for (size_t i = 0; i < sizeof(id.internal); i++) {
		unsigned int byte;

		if (sscanf(digits + 2 * i, "%2x", &byte) != 1)
			return 2;
		id.internal[i] = (char)byte;
	}
	/* the id by value, or behind a pointer */
	failed |= rank % 2 ? ncclCommInitRankScalable(&comm, job->ranks, rank, 1, &id, NULL)
			   : ncclCommInitRank(&comm, job->ranks, id, rank);
	for (int i = 0; i < job->steps && !failed; i++)
		step(job, rank, i, comm, &made);
	/* printed before the end, which may be delayed */
	print(rank, &made);
	failed |= ncclCommFinalize(comm);
	failed |= ncclCommDestroy(comm);
	return failed;
}

static int run_all(const struct job *job)
{
	struct made made[ALL_RANKS] = {0};
	void *comms[ALL_RANKS];

	failed |= ncclCommInitAll(comms, ALL_RANKS, NULL);
	for (int i = 0; i < job->steps && !failed; i++)
		for (int rank = 0; rank < ALL_RANKS; rank++)
			step(job, rank, i, comms[rank], &made[rank]);
	for (int rank = 0; rank < ALL_RANKS; rank++) {
		failed |= ncclCommDestroy(comms[rank]);
		print(rank, &made[rank]);
	}
	return failed;
}

/* Executes this program once for each rank, with the id that all of them need. */
static int start_ranks(const struct job *job, char **words)
{
	char digits[2 * sizeof(struct unique_id) + 1], rank[16];
	char *child_words[10] = {words[0], "--rank", rank, digits};
	struct unique_id id;
	int status;

	failed |= ncclGetUniqueId(&id);
	for (size_t i = 0; i < sizeof(id.internal); i++)
		snprintf(digits + 2 * i, 3, "%02x", (unsigned char)id.internal[i]);
	for (int i = 1; words[i] && i < 6; i++)
		child_words[3 + i] = words[i];
	for (int i = 0; i < job->ranks; i++) {
		pid_t child = fork();

		if (child < 0)
			return 1;
		if (!child) {
			snprintf(rank, sizeof(rank), "%d", i);
			execv("/proc/self/exe", child_words);
			_exit(127);
		}
	}
	while (wait(&status) > 0)
		failed |= status;
	return failed != 0;
}

int main(int count, char **words)
{
	int is_rank = count > 3 && !strcmp(words[1], "--rank");
	char **job_words = is_rank ? words + 3 : words;
	struct job job = {0, 0, "", -1, -1};
	int is_all;

	count -= is_rank ? 3 : 0;
	if (count < 3)
		return 2;
	is_all = !strcmp(job_words[1], "all");
	job.ranks = is_all ? ALL_RANKS : atoi(job_words[1]);
	job.steps = atoi(job_words[2]);
	if (job.ranks < 1 || job.ranks > MOST_RANKS)
		return 2;
	if (count > 5) {
		job.mode = job_words[3];
		job.odd_rank = atoi(job_words[4]);
		job.odd_step = atoi(job_words[5]);
	}
	if (is_all)
		return run_all(&job);
	return is_rank ? run_rank(&job, atoi(words[2]), words[3]) : start_ranks(&job, words);
}
