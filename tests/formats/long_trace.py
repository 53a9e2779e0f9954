"""Writes a trace of many events to stdout, as a training loop makes them: long_trace.py EVENTS

Of 20 events ten are launches (every other one by the CUDA driver, inside the next), four copies, two allocations, two
frees, and two executions on a GPU. The event with the number N copies, allocates or frees N % 1000 bytes.
"""

import sys

KERNELS = [
    f"void at::native::vectorized_elementwise_kernel<{width}, at::native::{name}Functor<float>, std::array<char*, {width}ul> >"
    f"(int, at::native::{name}Functor<float>, std::array<char*, {width}ul>)"
    for width in (1, 2, 4, 8)
    for name in ("CUDAFunctor_add", "Fill", "Mul", "Sigmoid", "Tanh", "Gelu", "Norm", "Copy", "Where", "Bernoulli")
]
META = (
    '{"type":"meta","format":3,"gpuprobe":"0.1.0","host":"node","kernel":"6.18.0","clock":"monotonic",'
    '"start_unix":1700000000.5,"command":["python","train.py"]}\n'
)


def event(n):
    at, thread, kernel = f"{n // 50_000}.{n % 50_000 * 20_000:09}", 4242 + n // 20 % 8, KERNELS[n // 7 % len(KERNELS)]
    head = f'{{"event_id":{n},"ts":{at}'
    who = f'"phase":"X","pid":4242,"tid":{thread},"process":"python","duration_us":{n * 7919 % 20_000 / 1000:.3f}'
    size, kind = n % 1000, n % 20
    if kind < 10:
        api, name = ("driver", "cuLaunchKernel") if kind % 2 == 0 else ("runtime", "cudaLaunchKernel")
        more = f',"parent":{n + 1},"nested":true' if kind % 2 == 0 else ""
        return (
            f'{head},"type":"launch","name":"{name}",{who},"api":"{api}","ret":0,"args":{{"func":"0x{0x7FED00000000 + n // 7 % 40 * 64:x}",'
            f'"gridDim":[{n % 500 + 1},1,1],"blockDim":[128,1,1],"args":"0x{0x7FFE00000000 + n % 4096 * 8:x}","sharedMem":0,"stream":"0x0"}}{more},'
            f'"stream":"0x0","kernel":"{kernel}","grid":[{n % 500 + 1},1,1],"block":[128,1,1]}}\n'
        )
    if kind < 14:
        return (
            f'{head},"type":"transfer","name":"cudaMemcpyAsync",{who},"api":"runtime","ret":0,"args":{{"dst":"0x{0x7F0000000000 + n * 512:x}",'
            f'"src":"0x{0x7E0000000000 + n * 512:x}","count":{size},"kind":"H2D","stream":"0x7fed{n % 4}000"}},"size":{size},"kind":"H2D","host":"pinned",'
            f'"async":true,"stream":"0x7fed{n % 4}000"}}\n'
        )
    if kind < 18:
        name, argument, what = ("cudaMalloc", "devPtr", "size") if kind < 16 else ("cudaFree", "devPtr", "freed")
        pointer = f"0x{0x7F0000000000 + n // 2 * 512:x}"
        return (
            f'{head},"type":"memory","name":"{name}",{who},"api":"runtime","ret":0,"args":{{"{argument}":"{pointer}"}},"{what}":{size},'
            f'"gpu":0,"ptr":"{pointer}","site":{n % 50 + 1},"kind":"device"}}\n'
        )
    return (
        f'{head},"type":"gpu","name":"{kernel}",{who},"op":"kernel","gpu":0,"context":1,"stream":7,"correlation":{n},"launch":{n - 10},'
        f'"queued_us":4.250,"grid":[{n % 500 + 1},1,1],"block":[128,1,1]}}\n'
    )


def write(events, out):
    out.write(META)
    for first in range(1, events + 1, 10_000):
        out.write("".join(map(event, range(first, min(first + 10_000, events + 1)))))
    calls = sum(n % 20 < 18 for n in range(1, events + 1))
    out.write(f'{{"type":"end","events":{events},"calls":{calls},"seconds":{events / 50_000},"lost":{{}}}}\n')


if __name__ == "__main__":
    write(int(sys.argv[1]), sys.stdout)
