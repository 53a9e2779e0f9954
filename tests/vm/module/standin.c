// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A stand-in for the NVIDIA kernel module in the machines of tests/vm: devices with the real names and
 * numbers, which answer ioctls by functions that can be probed and take a known time.
 */
#include <linux/cdev.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/timer.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/workqueue.h>

#include "unified.h"

/* older releases have no tracepoint for GPU errors */
#ifndef WITHOUT_TRACEPOINT
#define CREATE_TRACE_POINTS
#include "xid_trace.h"
#endif

#define MAJOR_OF_DRIVER 195
#define MINOR_OF_CONTROL 255

/* ioctls of the resource manager */
#define ESC_RM_FREE 0x29
#define ESC_RM_CONTROL 0x2a
#define ESC_RM_ALLOC 0x2b
#define UVM_INITIALIZE 0x30000001
#define UVM_MAP_EXTERNAL 33
/* not in the real module: touches and migrates memory */
#define UVM_TOUCH 0x7001
/* not in the real module: a recursive function, one that fails, and a GPU error */
#define ESC_RECURSE 0xe0
#define ESC_FAIL 0xe1
#define ESC_XID 0xe2

/* the PCI address of QEMU's graphics card, the only GPU */
#define GPU_BUS 0
#define GPU_SLOT PCI_DEVFN(2, 0)
#define FOLDER_OF_DRIVER "driver/nvidia"
#define FOLDER_OF_GPU FOLDER_OF_DRIVER "/gpus/0000:00:02.0"

#define WORK_US 2000
#define FAULT_US 3000
#define DEPTH 3

/* as if in its own source file, as in the real module: the compiler must not clone it for its callers */
#define NOIPA __attribute__((noipa))

static int uvm_major;
static struct timer_list tick;
static atomic_t ticks;

/* not static, so that the compiler neither renames nor clones them */
int nvidia_standin_work(unsigned int us);
int nvidia_standin_control(void);
int nvidia_standin_fail(const char *why);
int nvidia_standin_recurse(int depth);
void uvm_standin_fault(void);
void nvidia_standin_tick(void);
void nv_report_error(struct pci_dev *dev, u32 error_number, const char *format, va_list ap);

/* The duration of an ioctl of the resource manager. */
noinline int nvidia_standin_work(unsigned int us)
{
	usleep_range(us, us + 50);
	return 0;
}

noinline int nvidia_standin_control(void)
{
	int failed = nvidia_standin_work(WORK_US);

	/* prevents a tail call */
	barrier();
	return failed;
}

/* Inlined, so it cannot be probed. */
static __always_inline int nvidia_standin_inlined(void)
{
	barrier();
	return -EBUSY;
}

noinline int nvidia_standin_fail(const char *why)
{
	return nvidia_standin_inlined();
}

/* Recursive, so that calls of one function are nested. */
noinline int nvidia_standin_recurse(int depth)
{
	int below = depth > 1 ? nvidia_standin_recurse(depth - 1) : 0;

	usleep_range(200, 250);
	return below + 1;
}

/* The duration of a fault of unified memory. */
noinline void uvm_standin_fault(void)
{
	usleep_range(FAULT_US, FAULT_US + 50);
}

/* Called by a timer, in the context of any process. */
noinline void nvidia_standin_tick(void)
{
	atomic_inc(&ticks);
}

static void on_tick(struct timer_list *timer)
{
	nvidia_standin_tick();
	mod_timer(timer, jiffies + 1);
}

/* Every release reports errors by this function, with this name and these arguments. */
NOIPA void nv_report_error(struct pci_dev *dev, u32 error_number, const char *format, va_list ap)
{
	char *message = kvasprintf(GFP_KERNEL, format, ap);

#ifndef WITHOUT_TRACEPOINT
	if (message)
		trace_nvidia_dev_xid(dev, error_number, message);
#endif
	kfree(message);
}

static __printf(3, 4) void report(struct pci_dev *dev, u32 error_number, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	nv_report_error(dev, error_number, format, ap);
	va_end(ap);
}

/* With the message format of the real module, which names the process that it blames. */
static long report_error(u32 error_number)
{
	struct pci_dev *gpu = pci_get_domain_bus_and_slot(0, GPU_BUS, GPU_SLOT);

	if (!gpu)
		return -ENODEV;
	report(gpu, error_number, "pid='%d', name=%s, Ch %08x, intr %08x. MMU Fault: ENGINE %s HUBCLIENT_%s",
	       task_tgid_nr(current), current->comm, 8, 0x10, "GRAPHICS", "HOST");
	pci_dev_put(gpu);
	return 0;
}

static long nvidia_standin_ioctl(struct file *file, unsigned int request, unsigned long argument)
{
	unsigned int size = _IOC_SIZE(request);
	u32 words[16] = {};

	if (_IOC_TYPE(request) != 'F' || size > sizeof(words))
		return -ENOTTY;
	if (copy_from_user(words, (void __user *)argument, size))
		return -EFAULT;
	switch (_IOC_NR(request)) {
	case ESC_RM_ALLOC:
		nvidia_standin_work(WORK_US);
		words[size == 48 ? 10 : 7] = 0;
		break;
	case ESC_RM_CONTROL:
		nvidia_standin_control();
		/* an unknown command: NV_ERR_NOT_SUPPORTED */
		words[7] = words[2] == 0xdead ? 0x56 : 0;
		break;
	case ESC_RM_FREE:
		words[3] = 0;
		break;
	case ESC_RECURSE:
		return nvidia_standin_recurse(DEPTH);
	case ESC_FAIL:
		return nvidia_standin_fail("busy");
	case ESC_XID:
		return report_error(words[2]);
	default:
		return -EINVAL;
	}
	return copy_to_user((void __user *)argument, words, size) ? -EFAULT : 0;
}

/* The function by which the real module notifies its own parts of events of unified memory. */
NOIPA void uvm_perf_event_notify(uvm_perf_va_space_events_t *events, uvm_perf_event_t event,
				 uvm_perf_event_data_t *data)
{
	/* not empty, so that the call is not optimized away */
	barrier();
}

static void notify_fault(uvm_perf_va_space_events_t *events, u32 processor)
{
	uvm_perf_event_data_t data = {.fault.proc_id.val = processor};

	uvm_perf_event_notify(events, UVM_PERF_EVENT_FAULT, &data);
}

static void notify_migration(uvm_perf_va_space_events_t *events, u32 from, u32 to, u64 bytes)
{
	uvm_perf_event_data_t data = {.migration = {.src.val = from, .dst.val = to, .bytes = bytes}};

	uvm_perf_event_notify(events, UVM_PERF_EVENT_MIGRATION, &data);
}

/* Runs in a kernel thread, as the real module serves faults of GPUs. */
static void serve_faults(struct work_struct *work)
{
	struct touched *touched = container_of(work, struct touched, work);
	uvm_perf_event_data_t data = {};

	for (int i = 0; i < 3; i++)
		notify_fault(&touched->events, 1);
	notify_migration(&touched->events, 0, 1, 2 << 20);
	notify_migration(&touched->events, 0, 2, 1 << 20);
	notify_migration(&touched->events, 1, 0, 64 << 10);
	notify_migration(&touched->events, 2, 1, 4096);
	uvm_perf_event_notify(&touched->events, UVM_PERF_EVENT_REVOCATION, &data);
	/* memory shared by several processes has no owner */
	touched->space.va_space_mm.mm = NULL;
	notify_fault(&touched->events, 1);
}

/* Touches a page from the CPU and then from GPUs. */
static long touch(void)
{
	struct touched *touched = kzalloc(sizeof(*touched), GFP_KERNEL);

	if (!touched)
		return -ENOMEM;
	touched->space.va_space_mm.mm = current->mm;
	touched->events.va_space = &touched->space;
	notify_fault(&touched->events, 0);
	INIT_WORK(&touched->work, serve_faults);
	schedule_work(&touched->work);
	flush_work(&touched->work);
	kfree(touched);
	return 0;
}

static long uvm_standin_ioctl(struct file *file, unsigned int request, unsigned long argument)
{
	if (request == UVM_MAP_EXTERNAL)
		uvm_standin_fault();
	else if (request == UVM_TOUCH)
		return touch();
	else if (request != UVM_INITIALIZE)
		return -EINVAL;
	return 0;
}

static const struct file_operations of_driver = {.owner = THIS_MODULE,
						 .unlocked_ioctl = nvidia_standin_ioctl};
static const struct file_operations of_uvm = {.owner = THIS_MODULE, .unlocked_ioctl = uvm_standin_ioctl};

static int show_gpu(struct seq_file *file, void *unused)
{
	seq_puts(file, "Bus Location: \t 0000:00:02.0\nDevice Minor: \t 0\n");
	return 0;
}

/* The folder in /proc that lists the GPUs. Errors are ignored: the tests would notice. */
static void list_gpus(void)
{
	proc_mkdir(FOLDER_OF_DRIVER, NULL);
	proc_mkdir(FOLDER_OF_DRIVER "/gpus", NULL);
	proc_mkdir(FOLDER_OF_GPU, NULL);
	proc_create_single(FOLDER_OF_GPU "/information", 0444, NULL, show_gpu);
}

static int __init begin(void)
{
	int failed = __register_chrdev(MAJOR_OF_DRIVER, 0, MINOR_OF_CONTROL + 1, "nvidia", &of_driver);

	if (failed < 0)
		return failed;
	uvm_major = register_chrdev(0, "nvidia-uvm", &of_uvm);
	if (uvm_major < 0) {
		__unregister_chrdev(MAJOR_OF_DRIVER, 0, MINOR_OF_CONTROL + 1, "nvidia");
		return uvm_major;
	}
	timer_setup(&tick, on_tick, 0);
	mod_timer(&tick, jiffies + 1);
	list_gpus();
	return 0;
}

static void __exit end(void)
{
	remove_proc_subtree(FOLDER_OF_DRIVER, NULL);
	/* older kernels have only the old name */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	timer_delete_sync(&tick);
#else
	del_timer_sync(&tick);
#endif
	unregister_chrdev(uvm_major, "nvidia-uvm");
	__unregister_chrdev(MAJOR_OF_DRIVER, 0, MINOR_OF_CONTROL + 1, "nvidia");
}

module_init(begin);
module_exit(end);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Stand-in for the NVIDIA kernel module in tests");
