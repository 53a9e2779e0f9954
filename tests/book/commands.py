"""Which commands of the book are run in which way. A command that is in none of these tables needs neither root nor a GPU, and
is run on recordings of the repository."""

GPU = "needs an NVIDIA GPU and PyTorch"

# the page, the beginning of the command, and why it is not run
NOT_RUN = [
    ("docs/guides/convert.md", "gpuprobe convert demo.jsonl --to folded | flamegraph.pl", "flamegraph.pl is not ours"),
    ("docs/guides/convert.md", "gpuprobe convert train.jsonl.zst --to folded --weight", "flamegraph.pl is not ours"),
    ("docs/guides/convert.md", "sudo gpuprobe run --stack -o train.jsonl.zst", "records what the next commands read"),
    ("docs/guides/driver.md", "sudo gpuprobe trace --driver", "needs the device of the NVIDIA kernel module"),
    ("docs/guides/gpu-time.md", "sudo gpuprobe run --gpu-time", GPU),
    ("docs/guides/hangs.md", "sudo gpuprobe stacks", "eight processes that wait; tests/e2e/tests/stacks has them"),
    ("docs/guides/hip.md", "sudo gpuprobe run", "needs a program of HIP; tests/e2e/tests/layers has one"),
    ("docs/guides/hooks.md", "", "needs libraries that are written for the page; tests/e2e/tests/layers has some"),
    ("docs/guides/leak-hunt.md", "while sleep", "never ends"),
    ("docs/guides/opencl.md", "sudo gpuprobe run", "needs a program of OpenCL; tests/e2e/tests/layers has one"),
    ("docs/guides/out-of-memory.md", "sudo gpuprobe run --tensors", GPU),
    ("docs/guides/parquet.md", "gpuprobe convert", "tests/formats/recipes_check.py runs the page"),
    ("docs/guides/pytorch-leak.md", "sudo gpuprobe memory --tensors", GPU),
    ("docs/guides/ranks.md", "sudo gpuprobe run", "needs several hosts"),
    ("docs/guides/trace.md", "sudo gpuprobe trace -d 8246", "a program with threads that wait; tests/e2e/tests/trace has it"),
    ("docs/guides/trace.md", "sudo gpuprobe trace -t -d 8414", "a program that looks its kernels up; tests/e2e/tests/trace has it"),
    ("README.md", "sudo gpuprobe stacks", "as in docs/guides/hangs.md"),
]

# in commands: the address of a daemon, for which tools/pictures/serve.py answers with the test data of `top`
DAEMON = "http://node1:9000"


class Live:
    """How a command is run with probes, as root: its beginning, what is replaced in it, a program that has been started before
    it, one that is started a moment after it, and what differs between two runs beside times and sizes."""

    def __init__(self, page, begins, replaced=(), before=None, after=None, varying=None):
        self.page, self.begins, self.replaced, self.varying = page, begins, replaced, varying
        self.before, self.after = before, after


# The process of the page is another one here; less time shows the same; and only the libraries of this test are probed,
# because other tests run on this machine.
LEAK = [("-d 10225", "-d $PID"), ("--duration 20", "--duration 8"), ("./leaky 20", "./leaky 8")]
# How often it allocates depends on the time; a call site that frees each time may have freed when it was looked at.
COUNTS = r"\b\d{3,}\b|\bsteady\b|\bvarying\b"
DEMO = [("gpuprobe trace", "gpuprobe trace --duration 6 -p ./libcuda.so.1 -p ./libcudart.so.12")]
LIVE = [
    Live("README.md", "sudo gpuprobe run -- ./demo"),
    Live("README.md", "sudo gpuprobe memory", LEAK, before="./leaky 60", varying=COUNTS),
    Live("docs/getting-started.md", "sudo gpuprobe demo"),
    Live("docs/guides/convert.md", "sudo gpuprobe demo"),
    Live("docs/guides/leak-hunt.md", "sudo gpuprobe memory -d", LEAK, before="./leaky 60", varying=COUNTS),
    Live("docs/guides/leak-hunt.md", "sudo gpuprobe memory -- ./leaky", LEAK, varying=COUNTS),
    Live("docs/guides/trace.md", "sudo gpuprobe trace", DEMO, after="./demo"),
]
