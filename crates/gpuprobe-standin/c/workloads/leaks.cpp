/*
 * Five call sites that allocate device memory, through helper classes, templates, virtual calls and lambdas.
 * Two of them leak, one sixteen times as fast as the other; a cache fills up and is reused, a saw-tooth is
 * cut down repeatedly, and a set-up is made once. Options and the ledger are in leaks.h.
 *
 * With LEAKS_DRIVER it uses the driver: gradients and batches by cuMemCreate and cuMemMap, the others by
 * cuMemAlloc_v2.
 */
#include <functional>
#include <map>
#include <memory>
#include <type_traits>

#include "leaks.h"

#ifdef LEAKS_DRIVER
/* the granularity of physical memory */
#define UNIT (2ul << 20)
#else
#define UNIT (64ul << 10)
#endif

/* A purpose of memory, with its ledger. */
#define USE(Type, name, through, leaks)                                                                      \
	struct Type {                                                                                        \
		static CallSite call_site;                                                                   \
	};                                                                                                   \
	CallSite Type::call_site(name, "Tensor<" #Type ">::Tensor", through, leaks)

USE(Gradients, "gradients", "Accumulator::add", true);
USE(Events, "events", "Session::Session", true);
USE(Shapes, "cache", "Cache<unsigned long>::get", false);
USE(Batches, "sawtooth", "Loader::load", false);
USE(Weights, "setup", "Model::build", false);

/* Device memory that lives as long as its owner. */
template <typename Use> class Tensor
{
      public:
	OWN_FRAME explicit Tensor(size_t bytes) : bytes_(bytes)
	{
		int line;

#ifdef LEAKS_DRIVER
		if (MAPPED) {
			CUmemAllocationProp prop = {};

			prop.type = prop.location.type = 1;
			succeed(cuMemAddressReserve(&address_, bytes, 0, 0, 0), "cuMemAddressReserve");
			line = __LINE__ + 1;
			succeed(cuMemCreate(&handle_, bytes, &prop, 0), "cuMemCreate");
			succeed(cuMemMap(address_, bytes, 0, handle_, 0), "cuMemMap");
		} else {
			line = __LINE__ + 1;
			succeed(cuMemAlloc_v2(&address_, bytes), "cuMemAlloc_v2");
		}
#else
		line = __LINE__ + 1;
		succeed(cudaMalloc(&pointer_, bytes), "cudaMalloc");
#endif
		Use::call_site.allocated(bytes, line);
	}

	OWN_FRAME ~Tensor()
	{
#ifdef LEAKS_DRIVER
		if (MAPPED) {
			succeed(cuMemUnmap(address_, bytes_), "cuMemUnmap");
			succeed(cuMemRelease(handle_), "cuMemRelease");
			succeed(cuMemAddressFree(address_, bytes_), "cuMemAddressFree");
		} else {
			succeed(cuMemFree_v2(address_), "cuMemFree_v2");
		}
#else
		succeed(cudaFree(pointer_), "cudaFree");
#endif
		Use::call_site.freed(bytes_);
	}

	Tensor(const Tensor &) = delete;
	Tensor &operator=(const Tensor &) = delete;

      private:
	size_t bytes_;
#ifdef LEAKS_DRIVER
	static constexpr bool MAPPED =
	    std::is_same<Use, Gradients>::value || std::is_same<Use, Batches>::value;
	uint64_t address_, handle_;
#else
	void *pointer_;
#endif
};

template <typename Use> using Owned = std::unique_ptr<Tensor<Use>>;

/* An action that runs once per round. */
struct Step {
	virtual void run(unsigned long round) = 0;
	virtual ~Step() = default;
};

/* Leaks: gradients are added and never freed. */
class Accumulator : public Step
{
      public:
	OWN_FRAME void add(size_t units)
	{
		history_.push_back(std::make_unique<Tensor<Gradients>>(units * UNIT));
	}

	void run(unsigned long) override
	{
		add(4);
	}

      private:
	std::vector<Owned<Gradients>> history_;
};

/* Leaks slowly: each session has a buffer, and the session is never closed. */
class Session
{
      public:
	explicit OWN_FRAME Session(const std::function<void(size_t, Owned<Events> &)> &buffer)
	{
		buffer(1, events_);
		STAY();
	}

      private:
	Owned<Events> events_;
};

class Sessions : public Step
{
      public:
	void run(unsigned long round) override
	{
		if (round % 4)
			return;
		auto buffer = [this](size_t units, Owned<Events> &events) {
			events = std::make_unique<Tensor<Events>>(units * UNIT);
			opened_++;
		};
		forgotten_.push_back(std::make_unique<Session>(buffer));
	}

      private:
	unsigned long opened_ = 0;
	std::vector<std::unique_ptr<Session>> forgotten_;
};

/* Fills up with one block for each shape, and then reuses them. */
template <typename Key> class Cache : public Step
{
      public:
	OWN_FRAME Tensor<Shapes> &get(Key key)
	{
		auto &call_site = blocks_[key];
		if (!call_site)
			call_site = std::make_unique<Tensor<Shapes>>((1 + key % 3) * UNIT);
		return *call_site;
	}

	void run(unsigned long round) override
	{
		get(round * 7 % 32);
	}

      private:
	std::map<Key, Owned<Shapes>> blocks_;
};

/* Grows by a batch each round, until all of them are freed. */
class Loader : public Step
{
      public:
	OWN_FRAME void load(unsigned long round)
	{
		if (batches_.size() == 24)
			batches_.clear();
		batches_.push_back(std::make_unique<Tensor<Batches>>((1 + round % 2) * UNIT));
	}

	void run(unsigned long round) override
	{
		load(round);
	}

      private:
	std::vector<Owned<Batches>> batches_;
};

/* Live from the beginning to the end. */
class Model : public Step
{
      public:
	OWN_FRAME void build()
	{
		for (size_t layer = 1; layer <= 4; layer++)
			weights_.push_back(std::make_unique<Tensor<Weights>>(8 * layer * UNIT));
	}

	void run(unsigned long) override
	{
		if (weights_.empty())
			build();
	}

      private:
	std::vector<Owned<Weights>> weights_;
};

class Worker
{
      public:
	Worker()
	{
		steps_.push_back(std::make_unique<Model>());
		steps_.push_back(std::make_unique<Accumulator>());
		steps_.push_back(std::make_unique<Sessions>());
		steps_.push_back(std::make_unique<Cache<unsigned long>>());
		steps_.push_back(std::make_unique<Loader>());
	}

	void round(unsigned long round)
	{
		for (auto &step : steps_)
			step->run(round);
	}

	static const pthread_attr_t *attributes()
	{
		return NULL;
	}

      private:
	std::vector<std::unique_ptr<Step>> steps_;
};

int main(int count, char **words)
{
	return leaks_main<Worker>(200, count, words);
}
