/*
 * late_dlopen [MILLISECONDS]: a process without CUDA that loads libplugin.so after that time (default 0). The
 * plugin makes calls in its constructor and in a function. Prints {"pid","calls","live","live_bytes"}.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words)
{
	int (*run_plugin)(void);
	void *plugin;
	int result;

	if (count > 1)
		usleep((useconds_t)strtoul(words[1], NULL, 10) * 1000);
	plugin = dlopen("libplugin.so", RTLD_NOW);
	if (!plugin) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	*(void **)&run_plugin = dlsym(plugin, "plugin_work");
	result = run_plugin();
	printf("{\"pid\":%d,\"calls\":{\"cudaMalloc\":4,\"cudaFree\":2},\"live\":2,\"live_bytes\":%d}\n",
	       (int)getpid(), 12345 + 3000);
	return result;
}
