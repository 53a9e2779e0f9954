/* A stand-in NCCL: communicators know their ranks, and collectives succeed immediately. */
#include "faults.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct unique_id {
	char internal[128];
};

struct comm {
	int rank;
	int ranks;
};

enum { SUCCESS, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, NO_COLOR = -1 };

static int make(void **out, int rank, int ranks)
{
	struct comm *comm = malloc(sizeof(*comm));

	if (!comm)
		return SYSTEM_ERROR;
	*comm = (struct comm){rank, ranks};
	*out = comm;
	return SUCCESS;
}

int standin_generic(const char *function)
{
	return faults_enter(function);
}

int impl_ncclGetVersion(int *version)
{
	*version = 23203;
	return 0;
}

int impl_ncclGetUniqueId(struct unique_id *id)
{
	/* like the real one: something random and an address, and zeroes after it */
	memset(id, 0, sizeof(*id));
	return getrandom(id->internal, 40, 0) == 40 ? SUCCESS : SYSTEM_ERROR;
}

int impl_ncclCommInitRank(void **comm, int ranks, struct unique_id id, int rank)
{
	int fault = faults_enter("ncclCommInitRank");

	(void)id;
	if (fault)
		return fault;
	return rank >= 0 && rank < ranks ? make(comm, rank, ranks) : INVALID_ARGUMENT;
}

int impl_ncclCommInitRankConfig(void **comm, int ranks, struct unique_id id, int rank, void *config)
{
	(void)config;
	return impl_ncclCommInitRank(comm, ranks, id, rank);
}

int impl_ncclCommInitRankScalable(void **comm, int ranks, int rank, int count, struct unique_id *ids,
				  void *config)
{
	(void)config;
	return count > 0 ? impl_ncclCommInitRank(comm, ranks, ids[0], rank) : INVALID_ARGUMENT;
}

int impl_ncclCommInitAll(void **comms, int devices, const int *list)
{
	int result = SUCCESS;

	(void)list;
	for (int i = 0; i < devices && !result; i++)
		result = make(&comms[i], i, devices);
	return result;
}

/* The ranks of the part are not known here: it is the only one. */
int impl_ncclCommSplit(void *comm, int color, int key, void **part, void *config)
{
	(void)comm;
	(void)key;
	(void)config;
	*part = NULL;
	return color == NO_COLOR ? SUCCESS : make(part, 0, 1);
}

int impl_ncclCommDestroy(void *comm)
{
	int fault = faults_enter("ncclCommDestroy");

	if (!fault)
		free(comm);
	return fault;
}

int impl_ncclCommCount(const struct comm *comm, int *count)
{
	*count = comm->ranks;
	return SUCCESS;
}

int impl_ncclCommUserRank(const struct comm *comm, int *rank)
{
	*rank = comm->rank;
	return SUCCESS;
}

int impl_ncclCommCuDevice(const struct comm *comm, int *device)
{
	(void)comm;
	*device = 0;
	return SUCCESS;
}

int impl_ncclCommGetAsyncError(const void *comm, int *error)
{
	(void)comm;
	*error = 0;
	return 0;
}

const char *impl_ncclGetErrorString(int result)
{
	return result ? "stand-in error" : "no error";
}

const char *impl_ncclGetLastError(void *comm)
{
	(void)comm;
	return "";
}
