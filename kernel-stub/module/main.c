// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * urdma: an RDMA device for libibverbs and librdmacm whose work is done in user space. This file:
 * module and device lifetimes.
 *
 *   rdma link add urdma0 type urdma netdev eth0
 *   rdma link delete urdma0
 */
#include <linux/if_arp.h>
#include <linux/module.h>
#include <net/addrconf.h>
#include <rdma/iw_cm.h>
#include <rdma/rdma_netlink.h>

#include "urdma.h"

/* All devices, from before they are registered until they are freed. */
static LIST_HEAD(urdma_devs);
static DEFINE_SPINLOCK(urdma_devs_lock);

/* The device with this name, with a reference (ib_device_put); NULL if there is none. */
struct urdma_dev *urdma_dev_find(const char *name)
{
	struct urdma_dev *dev, *found = NULL;

	spin_lock(&urdma_devs_lock);
	list_for_each_entry(dev, &urdma_devs, list) {
		/* Fails for a device that is not registered, or not any more. */
		if (ib_device_try_get(&dev->ib)) {
			if (!strncmp(dev->ib.name, name, sizeof(dev->ib.name))) {
				found = dev;
				break;
			}
			ib_device_put(&dev->ib);
		}
	}
	spin_unlock(&urdma_devs_lock);
	return found;
}

/* A device is about to be freed. */
void urdma_dev_gone(struct urdma_dev *dev)
{
	spin_lock(&urdma_devs_lock);
	list_del(&dev->list);
	spin_unlock(&urdma_devs_lock);
}

/* Dispatches an event about the state of the port. */
void urdma_dev_port_event(struct urdma_dev *dev)
{
	struct ib_port_attr attr;
	struct ib_event event = {
		.device = &dev->ib,
		.element.port_num = 1,
	};

	if (ib_query_port(&dev->ib, 1, &attr))
		return;
	event.event = attr.state == IB_PORT_ACTIVE ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR;
	ib_dispatch_event(&event);
}

/* Dispatches an event about the GID table. */
void urdma_dev_gid_event(struct urdma_dev *dev)
{
	struct ib_event event = {
		.device = &dev->ib,
		.element.port_num = 1,
		.event = IB_EVENT_GID_CHANGE,
	};

	ib_dispatch_event(&event);
}

static int urdma_dev_add(const char *name, struct net_device *netdev)
{
	struct urdma_dev *dev;
	int ret;

	dev = ib_alloc_device(urdma_dev, ib);
	if (!dev)
		return -ENOMEM;
	dev->netdev = netdev;
	xa_init(&dev->qps);
	xa_init_flags(&dev->eps, XA_FLAGS_ALLOC);
	spin_lock_init(&dev->cm_lock);
	init_waitqueue_head(&dev->counted);
	spin_lock(&urdma_devs_lock);
	list_add(&dev->list, &urdma_devs);
	spin_unlock(&urdma_devs_lock);
	dev->ib.node_type = RDMA_NODE_RNIC;
	dev->ib.phys_port_cnt = 1;
	dev->ib.num_comp_vectors = 1;
	dev->ib.dev.parent = netdev->dev.parent;
	strscpy(dev->ib.node_desc, "urdma", sizeof(dev->ib.node_desc));
	addrconf_addr_eui48((u8 *)&dev->ib.node_guid, netdev->dev_addr);
	strscpy(dev->ib.iw_ifname, netdev->name, sizeof(dev->ib.iw_ifname));
	/* TCP ports are urdmad's: the port mapper must not be used. */
	dev->ib.iw_driver_flags = IW_F_NO_PORT_MAP;
	ib_set_device_ops(&dev->ib, &urdma_device_ops);
#if IS_ENABLED(CONFIG_INFINIBAND_USER_ACCESS)
	dev->ib.driver_def = urdma_uapi_definitions;
#endif
	ret = ib_device_set_netdev(&dev->ib, netdev, 1);
	if (!ret)
		ret = ib_register_device(&dev->ib, name, NULL);
	if (ret)
		ib_dealloc_device(&dev->ib);
	return ret;
}

static int urdma_newlink(const char *name, struct net_device *netdev)
{
	struct ib_device *other;

	if (netdev->type != ARPHRD_ETHER)
		return -EINVAL;
	other = ib_device_get_by_netdev(netdev, URDMA_DRIVER_ID);
	if (other) {
		ib_device_put(other);
		return -EEXIST;
	}
	return urdma_dev_add(name, netdev);
}

static struct rdma_link_ops urdma_link_ops = {
	.type = "urdma",
	.newlink = urdma_newlink,
};

/* Follows the state of the network device. */
static int urdma_netdev_event(struct notifier_block *block, unsigned long event, void *arg)
{
	struct net_device *netdev = netdev_notifier_info_to_dev(arg);
	struct ib_device *ib = ib_device_get_by_netdev(netdev, URDMA_DRIVER_ID);

	if (!ib)
		return NOTIFY_DONE;
	switch (event) {
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		urdma_dev_port_event(to_urdma_dev(ib));
		break;
	case NETDEV_CHANGEADDR:
		urdma_dev_gid_event(to_urdma_dev(ib));
		break;
	case NETDEV_UNREGISTER:
		ib_unregister_device_queued(ib);
		break;
	}
	ib_device_put(ib);
	return NOTIFY_DONE;
}

static struct notifier_block urdma_netdev_notifier = {
	.notifier_call = urdma_netdev_event,
};

static int __init urdma_init(void)
{
	int ret;

	ret = urdma_agent_init();
	if (ret)
		return ret;
	ret = register_netdevice_notifier(&urdma_netdev_notifier);
	if (ret) {
		urdma_agent_exit();
		return ret;
	}
	rdma_link_register(&urdma_link_ops);
	return 0;
}

static void __exit urdma_exit(void)
{
	rdma_link_unregister(&urdma_link_ops);
	unregister_netdevice_notifier(&urdma_netdev_notifier);
	ib_unregister_driver(URDMA_DRIVER_ID);
	urdma_agent_exit();
}

module_init(urdma_init);
module_exit(urdma_exit);

MODULE_AUTHOR("The urdma authors");
MODULE_DESCRIPTION("RDMA device served in user space");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_ALIAS_RDMA_LINK("urdma");
