#!/bin/sh
# What `gpuprobe bench` counts of a call, by bpftrace: how many, how many failed, and a histogram of their time, of each
# process and function. To be named to `--beside`. At its end it prints how many calls it counted, for benches/run to compare.
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
