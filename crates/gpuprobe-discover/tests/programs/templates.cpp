// Functions with mangled names.
#include <utility>

#include "record.h"

namespace gpu
{

template <typename T> struct Buffer {
	T value;
	NOINLINE int fill(T with)
	{
		value = with;
		return probe() + 1;
	}
};

template <typename F> NOINLINE int apply(F function)
{
	return function(7) + 1;
}

} // namespace gpu

int main()
{
	static volatile int result;
	result = gpu::apply([](int number) NOINLINE {
		gpu::Buffer<std::pair<int, float>> buffer{};
		return buffer.fill({number, 1.0F}) + 1;
	});
	return result;
}
