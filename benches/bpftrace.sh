#!/bin/sh
# Counts with bpftrace what `gpuprobe bench` counts: calls, failures and a histogram of durations per process and
# function. It is the command for `--beside`. At the end it prints the number of counted calls, which benches/run
# compares.
exec bpftrace -e "
uprobe:$GPUPROBE_LIBRARY:cuCtxSynchronize { @start[tid] = nsecs; }
uretprobe:$GPUPROBE_LIBRARY:cuCtxSynchronize /@start[tid]/ {
	@calls[pid, probe] = count();
	@ns[pid, probe] = hist(nsecs - @start[tid]);
	if (retval != 0) {
		@errors[pid, probe] = count();
	}
	delete(@start[tid]);
}
END { print(@calls); clear(@calls); clear(@errors); clear(@ns); clear(@start); }"
