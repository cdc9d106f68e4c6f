// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * /dev/urdma: an urdmad opens it to serve a device. The port of a device that is not served is
 * down, and the device cannot be opened.
 */
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "urdma.h"

/*
 * Time limit of urdmad for the counters of the port; it waits for processes for a tenth of it.
 * After that the last ones are shown, and at once until it answers.
 */
#define URDMA_COUNTERS_LIMIT HZ

/* An open file. */
struct urdma_agent {
	/*
	 * The device that it serves; NULL before it serves one and after the device is gone. Under
	 * urdma_agents_lock.
	 */
	struct urdma_dev *dev;
	u8 run_dir[URDMA_RUN_DIR_OCTETS];
	kuid_t owner;
	/* In which it numbers processes; with a reference. */
	struct pid_namespace *pids;
	/* Invalid if there is none. */
	kgid_t group;
	u32 gid_count;
	/* Unread messages; under urdma_agents_lock. */
	struct list_head notes;
	u8 gids[URDMA_GIDS][16];
	/* The processes that have the slots, with a reference; under urdma_agents_lock. */
	struct pid *slots[URDMA_SLOTS];
	/* The last counters of the port, and when they came; under urdma_agents_lock. */
	struct urdma_port_counters counters;
	unsigned long counted_at;
	/* Newer ones are wanted, since then; under urdma_agents_lock. */
	bool counters_wanted;
	unsigned long wanted_at;
	/* The device is gone. */
	bool is_over;
	wait_queue_head_t wait;
};

/* Guards the relation of devices and agents, in both directions. */
static DEFINE_SPINLOCK(urdma_agents_lock);

bool urdma_agent_is_there(struct urdma_dev *dev)
{
	return READ_ONCE(dev->agent);
}

/* The rule of urdmad's control socket: its user, its group, and CAP_DAC_OVERRIDE. */
static bool urdma_agent_admits_caller(const struct urdma_agent *agent)
{
	return uid_eq(current_euid(), agent->owner) ||
	       (gid_valid(agent->group) && in_egroup_p(agent->group)) || capable(CAP_DAC_OVERRIDE);
}

/*
 * The run directory of the device's urdmad; -ENODEV without one, -EACCES if the caller may not use
 * it.
 */
int urdma_agent_run_dir(struct urdma_dev *dev, u8 run_dir[URDMA_RUN_DIR_OCTETS])
{
	struct urdma_agent *agent;
	int ret = -ENODEV;

	spin_lock(&urdma_agents_lock);
	agent = dev->agent;
	if (agent && !urdma_agent_admits_caller(agent)) {
		ret = -EACCES;
	} else if (agent) {
		memcpy(run_dir, agent->run_dir, URDMA_RUN_DIR_OCTETS);
		ret = 0;
	}
	spin_unlock(&urdma_agents_lock);
	return ret;
}

/* The instance's GID with this index, zero if there is none. */
void urdma_agent_gid(struct urdma_dev *dev, unsigned int index, u8 gid[16])
{
	memset(gid, 0, 16);
	spin_lock(&urdma_agents_lock);
	if (dev->agent && index < dev->agent->gid_count)
		memcpy(gid, dev->agent->gids[index], 16);
	spin_unlock(&urdma_agents_lock);
}

/* Whether the calling process has the slot of a queue pair's number, which is valid. */
bool urdma_agent_grants(struct urdma_dev *dev, u32 qpn)
{
	bool ret;

	spin_lock(&urdma_agents_lock);
	ret = dev->agent && dev->agent->slots[qpn >> URDMA_SLOT_SHIFT] == task_tgid(current);
	spin_unlock(&urdma_agents_lock);
	return ret;
}

/* The calling process as the device's urdmad numbers it; 0 if urdmad cannot see it. */
u32 urdma_agent_pid(struct urdma_dev *dev)
{
	u32 pid = 0;

	spin_lock(&urdma_agents_lock);
	if (dev->agent)
		pid = pid_nr_ns(task_tgid(current), dev->agent->pids);
	spin_unlock(&urdma_agents_lock);
	return pid;
}

/* Asks urdmad for the counters of the port, unless they are new, and says how long to wait. */
static long urdma_agent_want_counters(struct urdma_dev *dev)
{
	struct urdma_agent *agent;
	long left = 0;

	spin_lock(&urdma_agents_lock);
	agent = dev->agent;
	if (agent && agent->counters_wanted) {
		left = max_t(long, agent->wanted_at + URDMA_COUNTERS_LIMIT - jiffies, 0);
	} else if (agent && time_after_eq(jiffies, agent->counted_at +
					  msecs_to_jiffies(URDMA_LIFESPAN_MS))) {
		agent->counters_wanted = true;
		agent->wanted_at = jiffies;
		wake_up_interruptible(&agent->wait);
		left = URDMA_COUNTERS_LIMIT;
	}
	spin_unlock(&urdma_agents_lock);
	return left;
}

static bool urdma_agent_has_counted(struct urdma_dev *dev)
{
	bool ret;

	spin_lock(&urdma_agents_lock);
	ret = !dev->agent || !dev->agent->counters_wanted;
	spin_unlock(&urdma_agents_lock);
	return ret;
}

/* The counters of the port, zero without an urdmad. May sleep. */
void urdma_agent_port_counters(struct urdma_dev *dev, struct urdma_port_counters *counters)
{
	long left = urdma_agent_want_counters(dev);

	if (left)
		wait_event_killable_timeout(dev->counted, urdma_agent_has_counted(dev), left);
	memset(counters, 0, sizeof(*counters));
	spin_lock(&urdma_agents_lock);
	if (dev->agent)
		*counters = dev->agent->counters;
	spin_unlock(&urdma_agents_lock);
}

/* Queues a message for the device's urdmad, or frees it if there is none (-ENODEV). */
int urdma_agent_send(struct urdma_dev *dev, struct urdma_note *note)
{
	int ret = -ENODEV;

	spin_lock(&urdma_agents_lock);
	if (dev->agent) {
		list_add_tail(&note->list, &dev->agent->notes);
		wake_up_interruptible(&dev->agent->wait);
		ret = 0;
	}
	spin_unlock(&urdma_agents_lock);
	if (ret)
		kfree(note);
	return ret;
}

/* Called before the device is freed. */
void urdma_agent_dev_gone(struct urdma_dev *dev)
{
	struct urdma_agent *agent;

	spin_lock(&urdma_agents_lock);
	agent = dev->agent;
	if (agent) {
		dev->agent = NULL;
		agent->dev = NULL;
		agent->is_over = true;
		wake_up_interruptible(&agent->wait);
	}
	spin_unlock(&urdma_agents_lock);
}

static int urdma_agent_open(struct inode *inode, struct file *file)
{
	struct urdma_agent *agent = kzalloc(sizeof(*agent), GFP_KERNEL);

	if (!agent)
		return -ENOMEM;
	INIT_LIST_HEAD(&agent->notes);
	init_waitqueue_head(&agent->wait);
	agent->pids = get_pid_ns(task_active_pid_ns(current));
	file->private_data = agent;
	return nonseekable_open(inode, file);
}

static int urdma_agent_release(struct inode *inode, struct file *file)
{
	struct urdma_agent *agent = file->private_data;
	struct urdma_note *note, *next;
	struct urdma_dev *dev;
	struct ib_event fatal = { .event = IB_EVENT_DEVICE_FATAL };
	unsigned int slot;

	spin_lock(&urdma_agents_lock);
	dev = agent->dev;
	/* A device that is being removed takes no reference; it will find no agent. */
	if (dev) {
		dev->agent = NULL;
		wake_up(&dev->counted);
		if (!ib_device_try_get(&dev->ib))
			dev = NULL;
	}
	spin_unlock(&urdma_agents_lock);
	list_for_each_entry_safe(note, next, &agent->notes, list)
		kfree(note);
	for (slot = 0; slot < URDMA_SLOTS; slot++)
		put_pid(agent->slots[slot]);
	put_pid_ns(agent->pids);
	if (dev) {
		urdma_cm_agent_gone(dev);
		fatal.device = &dev->ib;
		ib_dispatch_event(&fatal);
		urdma_dev_port_event(dev);
		urdma_dev_gid_event(dev);
		ib_device_put(&dev->ib);
	}
	kfree(agent);
	return 0;
}

static bool is_terminated(const u8 *octets, size_t len)
{
	return strnlen((const char *)octets, len) < len;
}

static int urdma_agent_serve(struct urdma_agent *agent, const struct urdma_serve __user *from)
{
	struct urdma_serve serve;
	struct urdma_dev *dev;
	int ret = 0;

	if (copy_from_user(&serve, from, sizeof(serve)))
		return -EFAULT;
	if (serve.abi != URDMA_KERNEL_ABI) {
		pr_warn_ratelimited("urdma: process %d speaks version %u, not %u: mixed releases\n",
				    current->tgid, serve.abi, URDMA_KERNEL_ABI);
		return -EPROTO;
	}
	if (serve.gid_count > URDMA_GIDS || serve.reserved ||
	    !is_terminated(serve.device, sizeof(serve.device)) ||
	    !is_terminated(serve.run_dir, sizeof(serve.run_dir)) || serve.run_dir[0] != '/')
		return -EINVAL;
	dev = urdma_dev_find((const char *)serve.device);
	if (!dev)
		return -ENODEV;
	spin_lock(&urdma_agents_lock);
	if (agent->dev || agent->is_over) {
		ret = -EINVAL;
	} else if (dev->agent) {
		ret = -EBUSY;
	} else {
		memcpy(agent->run_dir, serve.run_dir, sizeof(agent->run_dir));
		agent->owner = current_euid();
		agent->group = make_kgid(current_user_ns(), serve.group);
		memcpy(agent->gids, serve.gids, sizeof(agent->gids));
		agent->gid_count = serve.gid_count;
		/* There are none yet. */
		agent->counted_at = jiffies - msecs_to_jiffies(URDMA_LIFESPAN_MS);
		agent->dev = dev;
		dev->agent = agent;
	}
	spin_unlock(&urdma_agents_lock);
	if (!ret) {
		urdma_dev_gid_event(dev);
		urdma_dev_port_event(dev);
	}
	ib_device_put(&dev->ib);
	return ret;
}

static int urdma_agent_slot(struct urdma_agent *agent, const struct urdma_slot __user *from)
{
	struct urdma_slot request;
	struct pid *pid = NULL;

	if (copy_from_user(&request, from, sizeof(request)))
		return -EFAULT;
	if (request.slot >= URDMA_SLOTS || request.pid > PID_MAX_LIMIT)
		return -EINVAL;
	if (request.pid) {
		pid = find_get_pid(request.pid);
		if (!pid)
			return -ESRCH;
	}
	spin_lock(&urdma_agents_lock);
	swap(agent->slots[request.slot], pid);
	spin_unlock(&urdma_agents_lock);
	put_pid(pid);
	return 0;
}

static int urdma_agent_take_counters(struct urdma_agent *agent,
				     const struct urdma_port_counters __user *from)
{
	struct urdma_port_counters counters;

	if (copy_from_user(&counters, from, sizeof(counters)))
		return -EFAULT;
	spin_lock(&urdma_agents_lock);
	agent->counters = counters;
	agent->counted_at = jiffies;
	agent->counters_wanted = false;
	if (agent->dev)
		wake_up(&agent->dev->counted);
	spin_unlock(&urdma_agents_lock);
	return 0;
}

static long urdma_agent_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	switch (command) {
	case URDMA_IOC_SERVE:
		return urdma_agent_serve(file->private_data,
					 (const struct urdma_serve __user *)arg);
	case URDMA_IOC_SLOT:
		return urdma_agent_slot(file->private_data,
					(const struct urdma_slot __user *)arg);
	case URDMA_IOC_PORT_COUNTERS:
		return urdma_agent_take_counters(file->private_data,
						 (const struct urdma_port_counters __user *)arg);
	default:
		return -ENOTTY;
	}
}

static __poll_t urdma_agent_poll(struct file *file, poll_table *table)
{
	struct urdma_agent *agent = file->private_data;

	__poll_t events = 0;

	poll_wait(file, &agent->wait, table);
	spin_lock(&urdma_agents_lock);
	if (agent->is_over)
		events |= EPOLLHUP;
	if (!list_empty(&agent->notes))
		events |= EPOLLIN | EPOLLRDNORM;
	if (agent->counters_wanted)
		events |= EPOLLPRI;
	spin_unlock(&urdma_agents_lock);
	return events;
}

/* The next unread message, which the caller frees; NULL if there is none. */
static struct urdma_note *urdma_agent_next(struct urdma_agent *agent)
{
	struct urdma_note *note;

	spin_lock(&urdma_agents_lock);
	note = list_first_entry_or_null(&agent->notes, struct urdma_note, list);
	if (note)
		list_del(&note->list);
	spin_unlock(&urdma_agents_lock);
	return note;
}

/* Reads the messages that there are, as many as there is room for; -EAGAIN if there is none. */
static ssize_t urdma_agent_read(struct file *file, char __user *to, size_t octets, loff_t *offset)
{
	const size_t each = sizeof(struct urdma_cm_message);
	struct urdma_note *note;
	ssize_t done = 0;
	bool failed;

	if (octets < each)
		return -EINVAL;
	while (octets - done >= each) {
		note = urdma_agent_next(file->private_data);
		if (!note)
			break;
		failed = copy_to_user(to + done, &note->message, each);
		kfree(note);
		if (failed)
			return done ? done : -EFAULT;
		done += each;
	}
	return done ? done : -EAGAIN;
}

/*
 * The device that this agent serves, with a reference; NULL if there is none, or if it is being
 * removed.
 */
static struct urdma_dev *urdma_agent_dev(struct urdma_agent *agent)
{
	struct urdma_dev *dev;

	spin_lock(&urdma_agents_lock);
	dev = agent->dev;
	if (dev && !ib_device_try_get(&dev->ib))
		dev = NULL;
	spin_unlock(&urdma_agents_lock);
	return dev;
}

/* Writes messages; says how many octets it has taken, up to the first that it refuses. */
static ssize_t urdma_agent_write(struct file *file, const char __user *from, size_t octets,
				 loff_t *offset)
{
	struct urdma_cm_message message;
	struct urdma_dev *dev;
	ssize_t done = 0;
	int ret = 0;

	if (!octets || octets % sizeof(message))
		return -EINVAL;
	dev = urdma_agent_dev(file->private_data);
	if (!dev)
		return -ENODEV;
	while (!ret && done < octets) {
		if (copy_from_user(&message, from + done, sizeof(message)))
			ret = -EFAULT;
		else
			ret = urdma_cm_take(dev, &message);
		if (!ret)
			done += sizeof(message);
	}
	ib_device_put(&dev->ib);
	return done ? done : ret;
}

static const struct file_operations urdma_agent_fops = {
	.owner = THIS_MODULE,
	.open = urdma_agent_open,
	.release = urdma_agent_release,
	.unlocked_ioctl = urdma_agent_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.poll = urdma_agent_poll,
	.read = urdma_agent_read,
	.write = urdma_agent_write,
	.llseek = noop_llseek,
};

static struct miscdevice urdma_agent_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "urdma",
	.fops = &urdma_agent_fops,
	.mode = 0600,
};

int urdma_agent_init(void)
{
	return misc_register(&urdma_agent_misc);
}

void urdma_agent_exit(void)
{
	misc_deregister(&urdma_agent_misc);
}
