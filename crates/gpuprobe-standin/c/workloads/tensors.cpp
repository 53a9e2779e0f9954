/*
 * Tensors of a framework's allocator, on two GPUs. Losses are kept for ever, activations are freed after each
 * step, batches are freed by whichever thread comes next, and weights are allocated once. Options and the
 * ledger are in leaks.h; the ledger has the tensors of each call site, and also
 *
 *   "devices":[{"in_use_bytes","reserved_bytes","fragmented_bytes","live","allocations","frees","out_of_memory"},...]
 *
 * by the number of the GPU. Every 64th round asks for more memory than there is, and every 16th reports
 * memory of the host, which are no tensors on a GPU.
 */
#include <mutex>

#include "../c10_cuda.h"
#include "leaks.h"

#define USE(Type, name, through, leaks)                                                                      \
	struct Type {                                                                                        \
		static CallSite call_site;                                                                   \
	};                                                                                                   \
	CallSite Type::call_site(name, "Tensor<" #Type ">::Tensor", through, leaks)

USE(Losses, "losses", "Worker::remember", true);
USE(Activations, "activations", "Worker::step", false);
USE(Batches, "batches", "Worker::load", false);
USE(Weights, "weights", "Worker::build", false);

/* A tensor that lives as long as its owner. */
template <typename Use> class Tensor
{
      public:
	OWN_FRAME Tensor(size_t bytes, int device) : device_(device), bytes_((bytes + 511) / 512 * 512)
	{
		int line = __LINE__ + 1;
		pointer_ = standin::allocate(bytes, device);
		Use::call_site.allocated(bytes_, line);
	}

	Tensor(Tensor &&other) : pointer_(other.pointer_), device_(other.device_), bytes_(other.bytes_)
	{
		other.pointer_ = NULL;
	}

	Tensor &operator=(Tensor &&other)
	{
		std::swap(pointer_, other.pointer_);
		std::swap(device_, other.device_);
		std::swap(bytes_, other.bytes_);
		return *this;
	}

	~Tensor()
	{
		if (!pointer_)
			return;
		standin::free(pointer_, device_);
		Use::call_site.freed(bytes_);
	}

      private:
	void *pointer_;
	int device_;
	size_t bytes_;
};

class Worker
{
      public:
	Worker() : random_(++made * 0x9e3779b97f4a7c15ul)
	{
	}

	void round(unsigned long round)
	{
		if (weights_.empty())
			build();
		step();
		load();
		if (round % 4 == 0)
			remember();
		if (round % 64 == 63)
			fail();
		if (round % 16 == 15)
			standin::report_of_host(this, (long)size());
	}

	static const pthread_attr_t *attributes()
	{
		return NULL;
	}

      private:
	unsigned long random()
	{
		random_ ^= random_ << 13;
		random_ ^= random_ >> 7;
		random_ ^= random_ << 17;
		return random_;
	}

	int device()
	{
		return (int)(random() % standin::DEVICES);
	}

	/* from one byte to 32 KiB; few sizes, so that blocks are used again */
	size_t size()
	{
		return 1 + random() % 8 * 4096 + random() % 2;
	}

	OWN_FRAME void build()
	{
		for (int i = 0; i < 4; i++)
			weights_.emplace_back(8 * size(), device());
		STAY();
	}

	OWN_FRAME void step()
	{
		std::vector<Tensor<Activations>> activations;

		for (unsigned long i = random() % 8; i; i--)
			activations.emplace_back(size(), device());
		STAY();
	}

	/* The batch of this thread waits for another one, which frees it. */
	OWN_FRAME void load()
	{
		Tensor<Batches> batch(size(), device());
		std::lock_guard<std::mutex> lock(mutex);

		if (waiting.size() < 32)
			waiting.push_back(std::move(batch));
		else
			waiting[random() % waiting.size()] = std::move(batch);
		STAY();
	}

	OWN_FRAME void remember()
	{
		losses_.emplace_back(size(), device());
		STAY();
	}

	OWN_FRAME void fail()
	{
		if (standin::allocate(1ul << 41, device()))
			abort();
		STAY();
	}

	static std::atomic<unsigned long> made;
	static std::mutex mutex;
	static std::vector<Tensor<Batches>> &waiting;
	unsigned long random_;
	std::vector<Tensor<Weights>> weights_;
	std::vector<Tensor<Losses>> losses_;
};

std::atomic<unsigned long> Worker::made{0};
std::mutex Worker::mutex;
/* never destroyed: at the exit of the program everything is still live */
std::vector<Tensor<Batches>> &Worker::waiting = *new std::vector<Tensor<Batches>>;

static void print_devices(void)
{
	const char *comma = "";

	printf(",\"devices\":[");
	for (int device = 0; device < standin::DEVICES; device++) {
		standin::Figures figures = standin::figures(device);

		printf("%s{\"in_use_bytes\":%lu,\"reserved_bytes\":%lu,\"fragmented_bytes\":%lu,\"live\":%lu,"
		       "\"allocations\":%lu,\"frees\":%lu,\"out_of_memory\":%lu}",
		       comma, figures.in_use, figures.reserved, figures.fragmented, figures.live,
		       figures.allocations, figures.frees, figures.out_of_memory);
		comma = ",";
	}
	printf("]");
}

int main(int count, char **words)
{
	print_more = print_devices;
	return leaks_main<Worker>(200, count, words);
}
