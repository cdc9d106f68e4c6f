/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR MIT) */
/*
 * The interface of the urdma module and user space: the provider uses uverbs (private parts of
 * commands, driver methods), urdmad uses /dev/urdma. kernel-stub/client/src/abi.rs mirrors it for
 * Rust. A change of a layout or a meaning must increment URDMA_KERNEL_ABI.
 */
#ifndef URDMA_UAPI_H
#define URDMA_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>
#include <rdma/ib_user_ioctl_cmds.h>

/*
 * Version of this file. Also the uverbs ABI version of the device, so that libibverbs can refuse
 * it.
 */
#define URDMA_KERNEL_ABI 9

/* Driver number in RDMA netlink and uverbs; in-tree drivers count from 0. */
#define URDMA_DRIVER_ID 0x75726d61

/* Longest path of an instance's run directory, including the terminating zero. */
#define URDMA_RUN_DIR_OCTETS 104

/* Private part of the answer to GET_CONTEXT. */
struct urdma_context_answer {
	__u32 abi;
	__u32 reserved;
	/* The directory with the control socket of the urdmad that serves the device. */
	__u8 run_dir[URDMA_RUN_DIR_OCTETS];
};

/* Private part of REG_MR. */
struct urdma_reg_mr {
	/* The engine's key, which is both lkey and rkey. */
	__u32 key;
	__u32 reserved;
};

/* Private part of CREATE_QP. */
struct urdma_create_qp {
	/*
	 * The engine's number of the queue pair, 24 bits, not 0: a slot that the process has
	 * (URDMA_IOC_SLOT), and an index.
	 */
	__u32 qpn;
	__u32 reserved;
};

/* A method of UVERBS_OBJECT_CQ: raises an event of the queue in its completion channel. */
enum urdma_cq_methods {
	URDMA_METHOD_CQ_RAISE = (1U << UVERBS_ID_NS_SHIFT),
};

enum urdma_cq_raise_attrs {
	URDMA_ATTR_CQ_RAISE_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
};

/* A method of UVERBS_OBJECT_QP: raises an asynchronous event of the queue pair. */
enum urdma_qp_methods {
	URDMA_METHOD_QP_RAISE = (1U << UVERBS_ID_NS_SHIFT),
};

enum urdma_qp_raise_attrs {
	URDMA_ATTR_QP_RAISE_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
	/* __u32, a value of enum ib_event_type for queue pairs. */
	URDMA_ATTR_QP_RAISE_EVENT,
};

/* A method of UVERBS_OBJECT_SRQ: raises the event that the limit was reached. */
enum urdma_srq_methods {
	URDMA_METHOD_SRQ_RAISE = (1U << UVERBS_ID_NS_SHIFT),
};

enum urdma_srq_raise_attrs {
	URDMA_ATTR_SRQ_RAISE_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
};

/* Longest device name, including the terminating zero (IB_DEVICE_NAME_MAX). */
#define URDMA_DEVICE_OCTETS 64
/*
 * GIDs of an instance. The device shows them from index 1 on; index 0 is an RNIC's Ethernet
 * address.
 */
#define URDMA_GIDS 15

/* No group. */
#define URDMA_GROUP_NONE 0xffffffffU

/* URDMA_IOC_SERVE: the caller, an urdmad, serves a device until it closes the file. */
struct urdma_serve {
	__u32 abi;
	/* Number of valid entries of `gids`. */
	__u32 gid_count;
	/*
	 * The group whose members may use the device, in addition to the caller and processes with
	 * CAP_DAC_OVERRIDE.
	 */
	__u32 group;
	__u32 reserved;
	__u8 device[URDMA_DEVICE_OCTETS];
	__u8 run_dir[URDMA_RUN_DIR_OCTETS];
	__u8 gids[URDMA_GIDS][16];
};

/* Slots of an instance. The number of a queue pair is `slot << URDMA_SLOT_SHIFT | index`. */
#define URDMA_SLOTS 256
#define URDMA_SLOT_SHIFT 16

/* URDMA_IOC_SLOT: the urdmad that serves a device says which process has a slot. */
struct urdma_slot {
	__u32 slot;
	/* As the caller numbers processes; 0 for no process. */
	__u32 pid;
};

/*
 * URDMA_IOC_PORT_COUNTERS: the counters of the port since the urdmad that serves the device was
 * started, by the names of sysfs. poll(2) reports POLLPRI while a program waits for them.
 */
struct urdma_port_counters {
	/* Units of 4 octets. */
	__u64 port_xmit_data;
	__u64 port_rcv_data;
	__u64 port_xmit_packets;
	__u64 port_rcv_packets;
	__u64 unicast_xmit_packets;
	__u64 unicast_rcv_packets;
	__u64 multicast_xmit_packets;
	__u64 multicast_rcv_packets;
	__u64 port_rcv_errors;
	__u64 port_xmit_discards;
	__u64 duplicate_request;
	__u64 out_of_seq_request;
	__u64 send_rnr_err;
	__u64 rcvd_rnr_err;
};

/* Maximum length of a connection's private data, plus one. */
#define URDMA_PRIVATE_OCTETS 256

/*
 * Connection management: the urdmad that serves a device reads requests and writes results and
 * events, one message per call. `id` is a listener or a connection; ids of connection requests are
 * chosen by urdmad and have bit 31 set, all others by the module.
 */
enum urdma_cm_kind {
	/* To urdmad. Connect a queue pair: REPLY follows. */
	URDMA_CM_CONNECT = 1,
	/* To urdmad. Listen: LISTENING follows. */
	URDMA_CM_LISTEN,
	/* To urdmad. Accept a request: ESTABLISHED or CLOSED follows. */
	URDMA_CM_ACCEPT,
	/*
	 * To urdmad. Refuse a request: for the application or, with a `status`, because its
	 * listener was gone before an application saw the request.
	 */
	URDMA_CM_REJECT,
	/*
	 * To urdmad. End a listener or a connection in any state; for a connection CLOSED or a
	 * REPLY with an error follows.
	 */
	URDMA_CM_END,

	/* From urdmad. Result of LISTEN: `status` is 0 or a negative errno. */
	URDMA_CM_LISTENING = 0x100,
	/* From urdmad. A connection request for `listener`. */
	URDMA_CM_REQUEST,
	/* From urdmad. Result of CONNECT: `status` is 0 or a negative errno. */
	URDMA_CM_REPLY,
	/* From urdmad. An accepted request is established. */
	URDMA_CM_ESTABLISHED,
	/* From urdmad. The connection has ended. */
	URDMA_CM_CLOSED,
};

struct urdma_cm_message {
	/* enum urdma_cm_kind */
	__u32 kind;
	__u32 id;
	__u32 listener;
	__s32 status;
	__u32 qpn;
	__u32 backlog;
	__u16 local_port;
	__u16 remote_port;
	/* Outstanding reads and atomics of the sender as initiator and as responder. */
	__u8 ord;
	__u8 ird;
	__u8 private_len;
	__u8 reserved;
	/* IPv6 addresses, or IPv4-mapped ones. */
	__u8 local[16];
	__u8 remote[16];
	/* Of LISTEN: the process that listens, as urdmad numbers it; 0 if it is not visible. */
	__u32 pid;
	__u8 private_data[URDMA_PRIVATE_OCTETS];
};

#define URDMA_IOC_MAGIC 0xb7
#define URDMA_IOC_SERVE _IOW(URDMA_IOC_MAGIC, 0, struct urdma_serve)
#define URDMA_IOC_SLOT _IOW(URDMA_IOC_MAGIC, 1, struct urdma_slot)
#define URDMA_IOC_PORT_COUNTERS _IOW(URDMA_IOC_MAGIC, 2, struct urdma_port_counters)

#endif
