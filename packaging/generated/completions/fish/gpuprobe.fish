# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_gpuprobe_global_optspecs
    string join \n h/help V/version
end

function __fish_gpuprobe_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_gpuprobe_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_gpuprobe_using_subcommand
    set -l cmd (__fish_gpuprobe_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -s V -l version -d 'Print version'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "top" -d 'Show GPUs and the processes that use them, live, like htop'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "run" -d 'Run a command, record its CUDA calls and those of its children, and print a summary'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "record" -d 'Record the CUDA calls of processes that already run, then print a summary'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "trace" -d 'Show CUDA calls as they happen, with arguments, results and durations'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "convert" -d 'Convert a trace to a file for Perfetto, chrome://tracing, speedscope or a flame graph'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "report" -d 'Print the summary of a recorded trace again, or show it as a page'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "timeline" -d 'Show a recorded trace as rows of characters: what threads did, and operations on streams'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "diff" -d 'Compare two recorded traces: calls, CUDA kernels, bytes and call sites that differ'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "memory" -d 'Show live GPU memory by process and source line, and what grows'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "stacks" -d 'Show what the threads of GPU processes wait for, and which of them are stuck'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "daemon" -d 'Watch every CUDA process of the host: counts, live memory, metrics'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "list" -d 'List the functions that can be traced, with their signatures'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "doctor" -d 'Report what this machine supports: Linux kernel, privileges, libraries'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "demo" -d 'Run a built-in program under the probes; needs no GPU and no CUDA'
complete -c gpuprobe -n "__fish_gpuprobe_needs_command" -f -a "bench" -d 'Measure what probes cost per call on this machine; needs no GPU and no CUDA'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -s d -l pid -d 'Only this process and the processes it forks (repeatable); by default every process of the host' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l connect -d 'Show the figures of a gpuprobe daemon instead, such as http://host:9000; needs no root (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l ca-file -d 'With --connect: a file with the certificates that a daemon\'s certificate may be signed by' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l password-file -d 'With --connect: a file with the password of the user in the URL (http://user@host:9000)' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l interval -d 'Time between two updates' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -s n -l updates -d 'End after this many updates' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l sort -d 'Sort by this column, such as live, launch or errors' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l filter -d 'Show only processes whose name, pid, container, pending function or host contains this' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l budget -d 'The most that probes may take of each process\'s time, such as 2%; see `gpuprobe daemon --help`' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l attach -d 'Attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l driver-folder -d 'Folder in which the NVIDIA kernel module lists the host\'s GPUs; set it if the host\'s /proc is mounted elsewhere' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l nvml -d 'NVIDIA\'s management library (NVML), a name for the loader or a path; with `off` the state of GPUs is not read' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -s b -l batch -d 'Print frames to stdout instead of covering the terminal'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l json -d 'Print one line of JSON for each update'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -l tree -d 'Group processes by container'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand top" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -s e -l event -d 'Functions to trace (repeatable; `!GLOB` excludes some; `-e \'*\'` is all, including the hot ones)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l layer -d 'Of CUDA\'s two layers, record the functions of this one only' -r -f -a "driver\t'The CUDA driver (libcuda): everything that reaches the GPU, with one pair of probes per operation. Not seen: which function of the runtime was called, and calls of it that fail before they reach the CUDA driver'
runtime\t'The CUDA runtime (libcudart): what the program itself calls. Not seen: what libraries such as cuBLAS launch through the CUDA driver'
both\t'Both'"
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l gpu-time -d 'Also record when the GPU executed what was submitted, by an agent inside the process that uses CUPTI: `run` loads it into the command, and other processes need it in CUDA_INJECTION64_PATH when they start. With `=nodes`, each node of a CUDA graph is recorded, and not the graph as a whole. It slows down the program: see docs/guides/gpu-time.md' -r -f -a "graphs\t'Each launch of a graph is one execution'
nodes\t'Each node of a graph is one'"
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -s o -l output -d 'Trace file; it is compressed if the name ends in .zst; `-` is stdout, for `record` [default: traces/trace_<time>.jsonl, with the link traces/trace_latest.jsonl to it]' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l mode -d 'Permissions of the trace, in octal, such as 0644 [default: 0600 for a new file; an existing file keeps its own]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l max-size -d 'Keep at most this much on disk, such as 500M or 2G: the trace is split into segments (t.jsonl, t.2.jsonl, ...), and the oldest ones are removed; `none` or 0 for no limit. Calls that wait to be decoded may take as much again for a while. Part of the disk always stays free: 1 GiB, or less on a small disk [default: 4G]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l segment-size -d 'Start a new segment when one reaches this size [default: a quarter of --max-size]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l budget -d 'The most that probes may take of each process\'s time, such as 2%: functions whose calls cost more are sampled and their counts estimated, except those that track live memory' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l rows -d 'In the summary: show at most N functions, N CUDA kernels, and a third of N rows in other tables; 0 shows all [default: 6]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l width -d 'In the summary: the width in columns [default: that of the terminal, or 100]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l driver-folder -d 'Folder in which the NVIDIA kernel module lists the host\'s GPUs; set it if the host\'s /proc is mounted elsewhere' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l nvml -d 'NVIDIA\'s management library (NVML), a name for the loader or a path; with `off` the state of GPUs is not read' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l attach -d 'Attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l buffer -d 'Size of the ring buffer between the Linux kernel and gpuprobe, such as 64MiB (rounded up to a power of two)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l driver -d 'Also record requests to the NVIDIA kernel module: ioctl, mmap, open and poll on /dev/nvidia*, each inside the call that makes it; with a value, also Linux kernel functions of these names, such as \'uvm_*\' (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l hooks -d 'Also probe the functions that this file names, of any library or of the Linux kernel, and tracepoints (repeatable); examples/hooks has some' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l user -d 'Run the command as this user, a name or a number [default: with sudo the user who ran it, otherwise unchanged]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l tensors -d 'Also account for the tensors of PyTorch: live tensors by call site, and what it has reserved, uses and caches on each GPU. Costs some microseconds for each tensor'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l phases -d 'The classic form: one line when a call starts and one when it returns'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l stack -d 'Also record the stacks of launches, copies, waits and failed calls, for flame graphs (`convert --to folded`) and the call sites in the summary; allocations always have theirs'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l lossless -d 'Lose no calls: the program waits while it makes calls faster than gpuprobe can store them, but at most a second if gpuprobe stores nothing. See docs/results/performance.md for the cost'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l verify -d 'Also count in the BPF programs, as the daemon does, and compare every figure of the summary with those counts; fails if one differs. With -e, select frees along with allocations: memory is also counted at functions that are not selected'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -s q -l quiet -d 'Print no progress line'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l full-names -d 'In the summary: names of CUDA kernels in full, with namespaces, template arguments and parameters'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l nested -d 'In the summary: also the calls made inside other calls, indented below them'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -s v -l verbose -d 'Report what was found, attached and skipped'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -l as-root -d 'Run the command as root even if gpuprobe was started with sudo'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -s d -l pid -d 'Record this process (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l duration -d 'Stop after this long, such as 10s or 2m [default: at Ctrl-C, or when the processes have exited]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -s e -l event -d 'Functions to trace (repeatable; `!GLOB` excludes some; `-e \'*\'` is all, including the hot ones)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l layer -d 'Of CUDA\'s two layers, record the functions of this one only' -r -f -a "driver\t'The CUDA driver (libcuda): everything that reaches the GPU, with one pair of probes per operation. Not seen: which function of the runtime was called, and calls of it that fail before they reach the CUDA driver'
runtime\t'The CUDA runtime (libcudart): what the program itself calls. Not seen: what libraries such as cuBLAS launch through the CUDA driver'
both\t'Both'"
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l gpu-time -d 'Also record when the GPU executed what was submitted, by an agent inside the process that uses CUPTI: `run` loads it into the command, and other processes need it in CUDA_INJECTION64_PATH when they start. With `=nodes`, each node of a CUDA graph is recorded, and not the graph as a whole. It slows down the program: see docs/guides/gpu-time.md' -r -f -a "graphs\t'Each launch of a graph is one execution'
nodes\t'Each node of a graph is one'"
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -s o -l output -d 'Trace file; it is compressed if the name ends in .zst; `-` is stdout, for `record` [default: traces/trace_<time>.jsonl, with the link traces/trace_latest.jsonl to it]' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l mode -d 'Permissions of the trace, in octal, such as 0644 [default: 0600 for a new file; an existing file keeps its own]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l max-size -d 'Keep at most this much on disk, such as 500M or 2G: the trace is split into segments (t.jsonl, t.2.jsonl, ...), and the oldest ones are removed; `none` or 0 for no limit. Calls that wait to be decoded may take as much again for a while. Part of the disk always stays free: 1 GiB, or less on a small disk [default: 4G]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l segment-size -d 'Start a new segment when one reaches this size [default: a quarter of --max-size]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l budget -d 'The most that probes may take of each process\'s time, such as 2%: functions whose calls cost more are sampled and their counts estimated, except those that track live memory' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l rows -d 'In the summary: show at most N functions, N CUDA kernels, and a third of N rows in other tables; 0 shows all [default: 6]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l width -d 'In the summary: the width in columns [default: that of the terminal, or 100]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l driver-folder -d 'Folder in which the NVIDIA kernel module lists the host\'s GPUs; set it if the host\'s /proc is mounted elsewhere' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l nvml -d 'NVIDIA\'s management library (NVML), a name for the loader or a path; with `off` the state of GPUs is not read' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l attach -d 'Attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l buffer -d 'Size of the ring buffer between the Linux kernel and gpuprobe, such as 64MiB (rounded up to a power of two)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l driver -d 'Also record requests to the NVIDIA kernel module: ioctl, mmap, open and poll on /dev/nvidia*, each inside the call that makes it; with a value, also Linux kernel functions of these names, such as \'uvm_*\' (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l hooks -d 'Also probe the functions that this file names, of any library or of the Linux kernel, and tracepoints (repeatable); examples/hooks has some' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l all -d 'Record every process of the host, including those that start later'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l children -d 'With -d: also the processes that these fork from now on'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l all-launch-returns -d 'Probe the return of every launch. Otherwise, where the Linux kernel has sessions (6.13), one in 16 is probed on average, and what is new or follows a failure: launches cost half as much, the times of the others are estimated, and one that fails like no other before may not be seen to fail. With --stack, --phases, --verify, --gpu-time, --driver and hooks in the Linux kernel, every return is probed'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l tensors -d 'Also account for the tensors of PyTorch: live tensors by call site, and what it has reserved, uses and caches on each GPU. Costs some microseconds for each tensor'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l phases -d 'The classic form: one line when a call starts and one when it returns'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l stack -d 'Also record the stacks of launches, copies, waits and failed calls, for flame graphs (`convert --to folded`) and the call sites in the summary; allocations always have theirs'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l lossless -d 'Lose no calls: the program waits while it makes calls faster than gpuprobe can store them, but at most a second if gpuprobe stores nothing. See docs/results/performance.md for the cost'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l verify -d 'Also count in the BPF programs, as the daemon does, and compare every figure of the summary with those counts; fails if one differs. With -e, select frees along with allocations: memory is also counted at functions that are not selected'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -s q -l quiet -d 'Print no progress line'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l full-names -d 'In the summary: names of CUDA kernels in full, with namespaces, template arguments and parameters'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -l nested -d 'In the summary: also the calls made inside other calls, indented below them'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -s v -l verbose -d 'Report what was found, attached and skipped'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand record" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -s p -l path -d 'Only this library, or program with CUDA linked in (repeatable); by default all that processes use' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -s d -l pid -d 'Only this process (repeatable); by default every process of the host, including those that start later' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -s e -l event -d 'Functions to trace (repeatable; `!GLOB` excludes some; `-e \'*\'` is all, including the hot ones)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l layer -d 'Of CUDA\'s two layers, trace the functions of this one only' -r -f -a "driver\t'The CUDA driver (libcuda): everything that reaches the GPU, with one pair of probes per operation. Not seen: which function of the runtime was called, and calls of it that fail before they reach the CUDA driver'
runtime\t'The CUDA runtime (libcudart): what the program itself calls. Not seen: what libraries such as cuBLAS launch through the CUDA driver'
both\t'Both'"
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l gpu-time -d 'Also what the GPU executed, from processes that have loaded the agent (CUDA_INJECTION64_PATH). With `=nodes`, each node of a CUDA graph. It slows down these processes: see docs/guides/gpu-time.md' -r -f -a "graphs\t'Each launch of a graph is one execution'
nodes\t'Each node of a graph is one'"
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l min-duration -d 'Only calls that take at least this long, such as 50us or 1ms' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l budget -d 'The most that probes may take of each process\'s time, such as 2%: functions whose calls cost more are sampled, and only a part of their calls is printed; `[1 of ~8]` after a call says that it stands for about 8' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l count -d 'Stop after this many calls' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l duration -d 'Stop after this long, such as 10s or 2m' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l pending -d 'At this interval, show the calls that have not returned yet, with their age' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l attach -d 'Attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l buffer -d 'Size of the ring buffer between the Linux kernel and gpuprobe, such as 64MiB (rounded up to a power of two)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l driver -d 'Also record requests to the NVIDIA kernel module: ioctl, mmap, open and poll on /dev/nvidia*, each inside the call that makes it; with a value, also Linux kernel functions of these names, such as \'uvm_*\' (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l hooks -d 'Also probe the functions that this file names, of any library or of the Linux kernel, and tracepoints (repeatable); examples/hooks has some' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l children -d 'With -d: also the processes that these fork from now on'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -s t -l no-time -d 'Print no times in front of lines'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -s r -l entries -d 'Only the start of calls: no return probes, so no results and no durations, at about half the cost'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l phases -d 'The classic form: one line when a call starts and one when it returns'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l nested -d 'Also calls made inside other calls, such as CUDA driver calls inside runtime calls, indented'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l json -d 'JSON lines, as in a trace file'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l errors-only -d 'Only calls that fail'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -l stack -d 'Show the stack of each call, with source lines if there is debug information'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -s v -l verbose -d 'Report what was found, attached and skipped'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand trace" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -l to -d '`chrome` is JSON for chrome://tracing, Perfetto and speedscope; `perfetto` is Perfetto\'s own format, half the size; both have a track for each stream; `folded` is stacks with microseconds, for flame graphs; `parquet` is a table with a row for each event, for DuckDB and pandas' -r -f -a "chrome\t''
perfetto\t''
folded\t''
parquet\t''"
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -l weight -d 'The numbers in `folded`: `time` is microseconds in a call itself, `waiting` microseconds in calls that wait for the GPU, `launches` those of CUDA kernels and graphs, `allocated` bytes [default: time]' -r -f -a "time\t''
waiting\t''
launches\t''
calls\t''
allocated\t''"
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -s o -l output -d 'Output file; `-` is stdout [default: stdout if it is not a terminal, otherwise a file next to the trace]' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -s d -l pid -d 'Only this process (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -l thread -d 'Only this thread, by its id (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -s e -l event -d 'Only calls of these functions (repeatable; `!GLOB` excludes some). Bytes are part of the outermost call' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -l kernel-name -d 'Only launches of CUDA kernels whose name contains this text or matches it as a glob (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -l min-duration -d 'Only calls that took at least this long, such as 50us or 1ms, and those that did not return' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -l from -d 'Only what happened from this time of the recording on, such as 10, 10s or 500ms' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -l until -d 'Only what began before this time of the recording (`--to` of other commands)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand convert" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l html -d 'Write an HTML page with the whole recording to this file; it loads nothing else; `-` is stdout' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l rows -d 'In the summary: show at most N functions, N CUDA kernels, and a third of N rows in other tables; 0 shows all [default: 6]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l width -d 'In the summary: the width in columns [default: that of the terminal, or 100]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -s d -l pid -d 'Only this process (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l thread -d 'Only this thread, by its id (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -s e -l event -d 'Only calls of these functions (repeatable; `!GLOB` excludes some). Bytes are part of the outermost call' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l kernel-name -d 'Only launches of CUDA kernels whose name contains this text or matches it as a glob (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l min-duration -d 'Only calls that took at least this long, such as 50us or 1ms, and those that did not return' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l from -d 'Only what happened from this time of the recording on, such as 10, 10s or 500ms' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l to -d 'Only what began before this time of the recording' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l json -d 'Print the summary as one JSON object on one line, with times in nanoseconds and complete names'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l full-names -d 'In the summary: names of CUDA kernels in full, with namespaces, template arguments and parameters'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -l nested -d 'In the summary: also the calls made inside other calls, indented below them'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand report" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand timeline" -l width -d 'Width in columns [default: that of the terminal, or 100]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand timeline" -s d -l pid -d 'Only this process (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand timeline" -l thread -d 'Only this thread, by its id (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand timeline" -s e -l event -d 'Only calls of these functions (repeatable; `!GLOB` excludes some). Bytes are part of the outermost call' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand timeline" -l kernel-name -d 'Only launches of CUDA kernels whose name contains this text or matches it as a glob (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand timeline" -l min-duration -d 'Only calls that took at least this long, such as 50us or 1ms, and those that did not return' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand timeline" -l from -d 'Only what happened from this time of the recording on, such as 10, 10s or 500ms' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand timeline" -l to -d 'Only what began before this time of the recording' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand timeline" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -l fail-above -d 'End with status 1 if any compared figure changed by more than this, such as 10%; what is new counts as more' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -s d -l pid -d 'Only this process (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -l thread -d 'Only this thread, by its id (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -s e -l event -d 'Only calls of these functions (repeatable; `!GLOB` excludes some). Bytes are part of the outermost call' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -l kernel-name -d 'Only launches of CUDA kernels whose name contains this text or matches it as a glob (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -l min-duration -d 'Only calls that took at least this long, such as 50us or 1ms, and those that did not return' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -l from -d 'Only what happened from this time of the recording on, such as 10, 10s or 500ms' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -l to -d 'Only what began before this time of the recordings' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -l times -d 'Also compare the time in calls by function; without this, counts and bytes only'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -l full-names -d 'Names of CUDA kernels in full, with namespaces, template arguments and parameters'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -l json -d 'Print one JSON object on one line, with complete names and all differences'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand diff" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -s d -l pid -d 'Only this process and the processes it forks (repeatable); by default every process of the host' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l interval -d 'With --watch: time between two displays' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l duration -d 'Stop after this long [default: 10s; with --watch or a command, when these end]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l warm-up -d 'Time in which a call site may grow before it is judged; always at least a quarter of its age' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -s o -l output -d 'Write to this file instead of stdout, which the command may use as well' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l driver-folder -d 'Folder in which the NVIDIA kernel module lists the host\'s GPUs; set it if the host\'s /proc is mounted elsewhere' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l nvml -d 'NVIDIA\'s management library (NVML), a name for the loader or a path; with `off` the state of GPUs is not read' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l attach -d 'Attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l buffer -d 'Size of the ring buffer between the Linux kernel and gpuprobe, such as 64MiB (rounded up to a power of two)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l driver -d 'Also record requests to the NVIDIA kernel module: ioctl, mmap, open and poll on /dev/nvidia*, each inside the call that makes it; with a value, also Linux kernel functions of these names, such as \'uvm_*\' (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l hooks -d 'Also probe the functions that this file names, of any library or of the Linux kernel, and tracepoints (repeatable); examples/hooks has some' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l user -d 'Run the command as this user, a name or a number [default: with sudo the user who ran it, otherwise unchanged]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l sites -d 'Also show the whole stack of each call site, from the function that allocated to the program\'s first function'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l tensors -d 'Also account for the tensors of PyTorch: live tensors by call site, and what it has reserved, uses and caches on each GPU. Costs some microseconds for each tensor'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l watch -d 'Show it repeatedly, until Ctrl-C or the end of the command'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l json -d 'One line of JSON for each display'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -s v -l verbose -d 'Report what was found, attached and skipped'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -l as-root -d 'Run the command as root even if gpuprobe was started with sudo'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand memory" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand stacks" -s d -l pid -d 'Only this process (repeatable); by default every process that has a GPU open or a CUDA library mapped' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand stacks" -l samples -d 'How often to look, a quarter of a second apart; three or more show whether a thread moves' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand stacks" -l driver-folder -d 'Folder in which the NVIDIA kernel module lists the host\'s GPUs; set it if the host\'s /proc is mounted elsewhere' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand stacks" -l nvml -d 'NVIDIA\'s management library (NVML), a name for the loader or a path; with `off` the state of GPUs is not read' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand stacks" -l all-threads -d 'Also threads that are in no CUDA, NCCL or NVML call'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand stacks" -l json -d 'One JSON object'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand stacks" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l config -d 'Settings file: any of these options by its long name, such as `display_interval = 0`; options on the command line take precedence. Read again at SIGHUP [default: /etc/gpuprobe/gpuprobe.toml, if it exists]' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l gpu-time -d 'Collect GPU times for so many seconds of every minute, from processes that have loaded the agent (CUDA_INJECTION64_PATH): `gpuprobe_gpu_kernel_seconds_total`. It slows these processes down meanwhile: see docs/guides/gpu-time.md' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l driver -d 'Requests to the NVIDIA kernel module: ioctls on /dev/nvidia* by command, and each function\'s time in them. Costs every process of the host some 0.1 us per system call. With a value, also Linux kernel functions of these names, such as \'uvm_*\' (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l metrics-addr -d 'Address for the metrics endpoint, as HOST:PORT; only this host can reach the default, 0.0.0.0:9000 is for all' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l web-config -d 'TLS and passwords for the endpoint: a YAML file in the form that Prometheus exporters use, read again when it changes' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l otlp -d 'Also push the metrics to a receiver of OpenTelemetry, such as http://host:4318, and failed calls, out-of-memory errors and XIDs as logs (OTLP over HTTP, to URL/v1/metrics and URL/v1/logs)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l otlp-interval -d 'Time between two pushes' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l otlp-headers-file -d 'A file with headers for each push, such as `Authorization: Bearer TOKEN`, one per line' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l otlp-ca-file -d 'A file with the certificates that the receiver\'s certificate may be signed by [default: those of the system]' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l otlp-temporality -d 'Whether counters are pushed as totals or as what was added since the push before' -r -f -a "cumulative\t''
delta\t''"
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l otlp-attribute -d 'An attribute of all metrics and logs, such as deployment.environment.name=test (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l record-dir -d 'Record a process when it is asked for, into this directory: by `POST /api/record`, which needs a password in --web-config, or by SIGUSR1, which takes the process that calls CUDA most. Costs nothing while nothing is recorded' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l record-dir-size -d 'The most that recordings take in --record-dir: the oldest are deleted first, and a recording that comes near this size alone ends' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l record-time -d 'How long a process is recorded if the request says nothing else' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l record-time-limit -d 'The longest time that a request may ask for' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l display-interval -d 'Time between displays; 0 for none' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -s d -l pid -d 'Only this process and the processes it forks (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -s p -l path -d 'A library to watch in addition to those found on the host (repeatable)' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l hooks -d 'Also count the functions that this file names, of any library or of the Linux kernel, and tracepoints (repeatable)' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l calls-only -d 'Also count the calls of functions that match this glob and are not counted otherwise, such as cudaGetDevice: only their entries, without times and errors, at about half the cost (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l attach -d 'Attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l budget -d 'The most that probes may take of each process\'s time, such as 2%: functions whose calls cost more are sampled and their counts estimated, except those that track live memory' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l max-processes -d 'Most processes counted at once; each takes 900 bytes of Linux kernel memory, 7 MB by default' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l max-allocations -d 'Most live allocations of all processes; each takes 16 bytes of Linux kernel memory and 104 more while it is live: 17 to 126 MB by default. A process keeps up to a 256th of them for addresses that it has freed' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l max-counters -d 'Most pairs of a process and a function counted at once; each takes 100 bytes of Linux kernel memory and 290 per CPU, 1 MB and 3 MB per CPU by default' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l max-kernels -d 'Most CUDA kernels counted at once, on each stream of each process; each takes 330 bytes of Linux kernel memory and 60 more while it is counted, 5 MB by default' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l aggregate -d 'Which processes have common metrics: `process` (each its own), all of one `name`, `container` or `pod`' -r -f -a "process\t''
name\t''
container\t''
pod\t''"
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l max-series-processes -d 'Most running processes with their own metrics, those with the most live memory first. All others are added up by name, so that a scrape stays small. Each takes some 20 kB of a scrape, 1 MB by default' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l keep-exited -d 'Time for which an exited process keeps its own metrics, so that the last scrape sees them; after that its totals are added to those of its name' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l max-exited -d 'Most exited processes with their own metrics, for as long as --keep-exited says; the totals of others are added up by name. Each takes some 20 kB of a scrape' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l rescan -d 'Time between scans of all processes and folders. New libraries are found at once; these scans detach the libraries that are no longer used' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l refresh -d 'Time between two readings of the counters; metrics are at most this old' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l driver-folder -d 'Folder in which the NVIDIA kernel module lists the host\'s GPUs; set it if the host\'s /proc is mounted elsewhere' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l nvml -d 'NVIDIA\'s management library (NVML), a name for the loader or a path; with `off` the state of GPUs is not read' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l container-logs -d 'Folder in which the kubelet keeps links to the logs of containers: pod names are taken from them' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l warm-up -d 'Time in which a call site may grow before it is suspected of a leak; always at least a quarter of its age' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l memleak -d 'Memory: allocations, frees, and live memory by process and call site with its growth'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l addresses -d 'Display each live address with its size instead of call sites: the classic form'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l tensors -d 'Also account for the tensors of PyTorch: live tensors by call site, and what it has reserved, uses and caches on each GPU. Costs some microseconds for each tensor'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l stacks -d 'Also show on /api/stacks what the threads of GPU processes wait for, to everyone who may read the metrics'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l cudatrace -d 'CUDA kernel launches'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l bandwidth-util -d 'Copies and their bandwidth'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l runtime-failures -d 'Count calls of the CUDA runtime that allocate, free, copy or fill and fail before they reach the CUDA driver by a second pair of probes on each such call. Without it they are counted at instructions that only failing calls run, at no cost to others, in x86-64 code and if the runtime could be initialized'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -l all-launch-returns -d 'Probe the return of every launch. Otherwise, where the Linux kernel has sessions (6.13), one in 16 is probed on average, and what is new or follows a failure: launches cost less, their times are estimated, and one that fails like no other before may not be seen to fail'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -s v -l verbose -d 'Report what was found, attached and skipped'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand daemon" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand list" -l driver -d 'What `--driver` can probe: calls on the devices of the NVIDIA kernel module and functions of its modules; with a glob, any function of the Linux kernel'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand list" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -s d -l pid -d 'Report the libraries of this process instead of those of the host' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -l duration -d 'With --cost: count calls for this long' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -l attach -d 'With --cost: attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -s o -l output -d 'With --support: write the archive to this file, which must be a new one [default: gpuprobe-support-TIME.tar.gz]' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -l connect -d 'With --support: the URL of the daemon, such as https://user@host:9000 [default: the address in its settings]' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -l ca-file -d 'With --connect: a file with the certificates that the daemon\'s certificate may be signed by' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -l password-file -d 'With --connect: a file with the password of the user in the URL' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -l cost -d 'Predict what it would cost to watch the running processes: calls are counted for a while and multiplied by the cost of a call on this machine'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -l json -d 'Print JSON'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -l support -d 'Write an archive for a bug report: this report, versions, losses of a running daemon, its settings without secrets, and messages of the Linux kernel about GPUs and BPF; names of processes and home folders are hashed'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -l full -d 'With --support: keep the names of processes and home folders'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand demo" -l attach -d 'Attach by `session`, `multi` or `perf` instead of the best that the Linux kernel supports' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand demo" -l buffer -d 'Size of the ring buffer between the Linux kernel and gpuprobe, such as 64MiB (rounded up to a power of two)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand demo" -l driver -d 'Also record requests to the NVIDIA kernel module: ioctl, mmap, open and poll on /dev/nvidia*, each inside the call that makes it; with a value, also Linux kernel functions of these names, such as \'uvm_*\' (repeatable)' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand demo" -l hooks -d 'Also probe the functions that this file names, of any library or of the Linux kernel, and tracepoints (repeatable); examples/hooks has some' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand demo" -s o -l output -d 'Keep the trace in this file' -r -F
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand demo" -s v -l verbose -d 'Report what was found, attached and skipped'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand demo" -s h -l help -d 'Print help'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand bench" -l attach -d 'Attach only by `session`, `multi` or `perf` instead of by each that the Linux kernel supports' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand bench" -l rounds -d 'Number of rounds; each mode makes a thousand calls per round' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand bench" -l beside -d 'A command that probes `cuCtxSynchronize` of the library $GPUPROBE_LIBRARY, to be compared with gpuprobe. It gets a SIGINT at the end' -r
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand bench" -l check -d 'Fail if a ratio is more than a tenth above its target'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand bench" -l json -d 'Print JSON'
complete -c gpuprobe -n "__fish_gpuprobe_using_subcommand bench" -s h -l help -d 'Print help'
