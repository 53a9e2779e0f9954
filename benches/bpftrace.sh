#!/bin/sh
# Counts with bpftrace what `gpuprobe bench` counts, per process and function: calls, failures, bytes and a histogram of
# durations. It is the command for `--beside`. It knows neither live memory nor the direction of copies. At the end it
# prints the number of counted calls, which benches/run compares.
exec bpftrace -e "
uprobe:$GPUPROBE_LIBRARY:cuCtxSynchronize,
uprobe:$GPUPROBE_LIBRARY:cuMemFree_v2 { @start[tid] = nsecs; }
uprobe:$GPUPROBE_LIBRARY:cuMemAlloc_v2 { @start[tid] = nsecs; @size[tid] = arg1; }
uprobe:$GPUPROBE_LIBRARY:cuMemcpyHtoD_v2 { @start[tid] = nsecs; @size[tid] = arg2; }
uretprobe:$GPUPROBE_LIBRARY:cuCtxSynchronize,
uretprobe:$GPUPROBE_LIBRARY:cuMemFree_v2 /@start[tid]/ {
	@calls[pid, probe] = count();
	@ns[pid, probe] = hist(nsecs - @start[tid]);
	if (retval != 0) {
		@errors[pid, probe] = count();
	}
	delete(@start[tid]);
}
uretprobe:$GPUPROBE_LIBRARY:cuMemAlloc_v2,
uretprobe:$GPUPROBE_LIBRARY:cuMemcpyHtoD_v2 /@start[tid]/ {
	@calls[pid, probe] = count();
	@ns[pid, probe] = hist(nsecs - @start[tid]);
	if (retval != 0) {
		@errors[pid, probe] = count();
	} else {
		@bytes[pid, probe] = sum(@size[tid]);
	}
	delete(@start[tid]);
	delete(@size[tid]);
}
END {
	print(@calls);
	clear(@calls); clear(@errors); clear(@ns); clear(@bytes); clear(@start); clear(@size);
}"
