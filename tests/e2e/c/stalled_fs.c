/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A file system that stops answering. Serves the regular files of a folder, read only, through /dev/fuse:
 *
 *     stalled_fs FOLDER MOUNTPOINT
 *
 * Prints "mounted". After one line on its standard input it still accepts requests and answers none; it
 * prints "stalled" then, and "asked" when the first of them arrives. At the end of its input it unmounts and
 * exits, which fails every pending request.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_FILES 64
#define MOST_READ (128 << 10)

static struct {
	char name[256];
	int fd;
} files[MOST_FILES];
static int file_count;
static int device;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void open_files(const char *folder)
{
	DIR *dir = opendir(folder);
	struct dirent *entry;

	if (!dir)
		die(folder);
	while ((entry = readdir(dir)) && file_count < MOST_FILES) {
		int fd;

		if (entry->d_type != DT_REG)
			continue;
		fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			die(entry->d_name);
		snprintf(files[file_count].name, sizeof(files[0].name), "%s", entry->d_name);
		files[file_count++].fd = fd;
	}
	closedir(dir);
}

static void answer(__u64 unique, int error, const void *data, size_t size)
{
	static char buffer[sizeof(struct fuse_out_header) + MOST_READ];
	struct fuse_out_header *header = (void *)buffer;

	if (error)
		size = 0;
	*header = (struct fuse_out_header){.len = sizeof(*header) + size, .error = -error, .unique = unique};
	memcpy(buffer + sizeof(*header), data, size);
	/* fails if the request was interrupted meanwhile */
	if (write(device, buffer, header->len) < 0 && errno != ENOENT)
		die("answer");
}

/* The folder has inode 1, the files follow. */
static int attributes(__u64 node, struct fuse_attr *attr)
{
	struct stat stat;

	memset(attr, 0, sizeof(*attr));
	attr->ino = node;
	attr->nlink = 1;
	if (node == FUSE_ROOT_ID) {
		attr->mode = S_IFDIR | 0755;
		return 0;
	}
	if (node < 2 || node >= 2u + file_count || fstat(files[node - 2].fd, &stat))
		return ENOENT;
	attr->mode = S_IFREG | 0755;
	attr->size = stat.st_size;
	attr->blocks = stat.st_blocks;
	attr->mtime = stat.st_mtime;
	attr->ctime = stat.st_mtime;
	return 0;
}

static void lookup(const struct fuse_in_header *in, const char *name)
{
	/* no caching of attributes: every stat of a file is a request */
	struct fuse_entry_out out = {0};

	for (int i = 0; i < file_count; i++) {
		if (!strcmp(files[i].name, name)) {
			out.nodeid = i + 2;
			answer(in->unique, attributes(out.nodeid, &out.attr), &out, sizeof(out));
			return;
		}
	}
	answer(in->unique, ENOENT, NULL, 0);
}

static void read_file(const struct fuse_in_header *in, const struct fuse_read_in *read)
{
	static char data[MOST_READ];
	ssize_t size;

	if (in->nodeid < 2 || in->nodeid >= 2u + file_count || read->size > sizeof(data)) {
		answer(in->unique, EINVAL, NULL, 0);
		return;
	}
	size = pread(files[in->nodeid - 2].fd, data, read->size, read->offset);
	answer(in->unique, size < 0 ? errno : 0, data, size < 0 ? 0 : size);
}

static void serve(const struct fuse_in_header *in, const void *body)
{
	struct fuse_attr_out attr = {0};
	/* otherwise every open would drop the pages that programs running from here have mapped */
	struct fuse_open_out opened = {.open_flags = FOPEN_KEEP_CACHE};
	struct fuse_init_out init = {
	    .major = FUSE_KERNEL_VERSION, .minor = 31, .max_readahead = MOST_READ, .max_write = 4096};

	switch (in->opcode) {
	case FUSE_INIT:
		answer(in->unique, 0, &init, sizeof(init));
		break;
	case FUSE_LOOKUP:
		lookup(in, body);
		break;
	case FUSE_GETATTR:
		answer(in->unique, attributes(in->nodeid, &attr.attr), &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		answer(in->unique, 0, &opened, sizeof(opened));
		break;
	case FUSE_READ:
		read_file(in, body);
		break;
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_READDIR:
		answer(in->unique, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		answer(in->unique, ENOSYS, NULL, 0);
	}
}

static void mount_at(const char *mountpoint)
{
	char options[128];

	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (device < 0)
		die("/dev/fuse");
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=%s,group_id=0,allow_other", device,
		 getenv("FUSE_USER") ? getenv("FUSE_USER") : "0");
	if (mount("stalled", mountpoint, "fuse", MS_NODEV | MS_NOSUID, options))
		die("mount");
}

int main(int argc, char **argv)
{
	static char request[MOST_READ];
	int is_stalled = 0, was_asked = 0;

	if (argc != 3)
		return 2;
	setvbuf(stdout, NULL, _IONBF, 0);
	open_files(argv[1]);
	mount_at(argv[2]);
	puts("mounted");
	for (;;) {
		struct pollfd polls[2] = {{.fd = device, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
		struct fuse_in_header *in = (void *)request;

		if (poll(polls, 2, -1) < 0)
			die("poll");
		if (polls[1].revents) {
			char line[16];

			if (read(0, line, sizeof(line)) <= 0)
				break;
			is_stalled = 1;
			puts("stalled");
			continue;
		}
		if (!polls[0].revents)
			continue;
		if (read(device, request, sizeof(request)) < (ssize_t)sizeof(*in)) {
			if (errno == ENODEV)
				break;
			continue;
		}
		if (!is_stalled) {
			serve(in, in + 1);
		} else if (!was_asked && in->opcode != FUSE_FORGET && in->opcode != FUSE_BATCH_FORGET) {
			was_asked = 1;
			puts("asked");
		}
	}
	umount2(argv[2], MNT_DETACH);
	close(device);
	return 0;
}
