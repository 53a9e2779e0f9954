// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Stands in for NVIDIA's kernel driver in the machines of tests/vm: devices by the names and numbers that the
 * driver has, which answer ioctls as it would, by functions that can be probed. What they do takes a known
 * time.
 */
#include <linux/cdev.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/timer.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#define MAJOR_OF_DRIVER 195
#define MINOR_OF_CONTROL 255

/* ioctls of the resource manager, and where their arguments have the driver's status */
#define ESC_RM_FREE 0x29
#define ESC_RM_CONTROL 0x2a
#define ESC_RM_ALLOC 0x2b
#define UVM_INITIALIZE 0x30000001
#define UVM_MAP_EXTERNAL 33
/* of our own: a function that calls itself, and one that fails */
#define ESC_RECURSE 0xe0
#define ESC_FAIL 0xe1

#define WORK_US 2000
#define FAULT_US 3000
#define DEPTH 3

static int uvm_major;
static struct timer_list tick;
static atomic_t ticks;

/* not static, so that the compiler neither renames them nor makes others of them */
int nvidia_standin_work(unsigned int us);
int nvidia_standin_control(void);
int nvidia_standin_fail(const char *why);
int nvidia_standin_recurse(int depth);
void uvm_standin_fault(void);
void nvidia_standin_tick(void);

/* What an ioctl of the resource manager does: it sleeps. */
noinline int nvidia_standin_work(unsigned int us)
{
	usleep_range(us, us + 50);
	return 0;
}

noinline int nvidia_standin_control(void)
{
	int failed = nvidia_standin_work(WORK_US);

	/* something is left to do, so that this one is no jump to the other */
	barrier();
	return failed;
}

noinline int nvidia_standin_fail(const char *why)
{
	barrier();
	return -EBUSY;
}

/* Its own caller, so that calls of one function lie in each other. */
noinline int nvidia_standin_recurse(int depth)
{
	int below = depth > 1 ? nvidia_standin_recurse(depth - 1) : 0;

	usleep_range(200, 250);
	return below + 1;
}

/* As if it served a fault of unified memory. */
noinline void uvm_standin_fault(void)
{
	usleep_range(FAULT_US, FAULT_US + 50);
}

/* Called by a timer, in whatever process the processor is busy with. */
noinline void nvidia_standin_tick(void)
{
	atomic_inc(&ticks);
}

static void on_tick(struct timer_list *timer)
{
	nvidia_standin_tick();
	mod_timer(timer, jiffies + 1);
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
		/* of a command that nobody knows: NV_ERR_NOT_SUPPORTED */
		words[7] = words[2] == 0xdead ? 0x56 : 0;
		break;
	case ESC_RM_FREE:
		words[3] = 0;
		break;
	case ESC_RECURSE:
		return nvidia_standin_recurse(DEPTH);
	case ESC_FAIL:
		return nvidia_standin_fail("busy");
	default:
		return -EINVAL;
	}
	return copy_to_user((void __user *)argument, words, size) ? -EFAULT : 0;
}

static long uvm_standin_ioctl(struct file *file, unsigned int request, unsigned long argument)
{
	if (request == UVM_MAP_EXTERNAL)
		uvm_standin_fault();
	else if (request != UVM_INITIALIZE)
		return -EINVAL;
	return 0;
}

static const struct file_operations of_driver = {.owner = THIS_MODULE,
						 .unlocked_ioctl = nvidia_standin_ioctl};
static const struct file_operations of_uvm = {.owner = THIS_MODULE, .unlocked_ioctl = uvm_standin_ioctl};

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
	return 0;
}

static void __exit end(void)
{
	/* the newer name of it is missing on the older kernel */
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
MODULE_DESCRIPTION("Stands in for the NVIDIA driver in tests");
