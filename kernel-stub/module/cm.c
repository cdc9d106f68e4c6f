// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Turns the calls of iw_cm into messages to the device's urdmad, which communicates with the peer,
 * and urdmad's answers into events of iw_cm. iw_cm waits for the event that ends a connect or an
 * accept, and a connection holds a reference to its queue pair. So every endpoint must end: by a
 * message of urdmad, with the queue pair, or with urdmad. Whichever is first removes the endpoint
 * from the table, under the device's cm_lock, exactly once.
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <net/ipv6.h>
#include <rdma/iw_cm.h>

#include "urdma.h"

/*
 * Maximum time until urdmad answers a listen: rdma_cm holds the lock of all of its devices while a
 * program listens on any address.
 */
#define URDMA_LISTEN_TIMEOUT (2 * HZ)

/* Set in the ids that urdmad chooses for requests, clear in the module's own. */
#define URDMA_ID_OF_REQUEST BIT(31)

enum urdma_ep_state {
	URDMA_EP_LISTENING,
	URDMA_EP_CONNECTING,
	URDMA_EP_ACCEPTING,
	URDMA_EP_ESTABLISHED,
};

/* A listener or a connection. */
struct urdma_ep {
	u32 id;
	enum urdma_ep_state state;
	struct urdma_dev *dev;
	/* Holds a reference. */
	struct iw_cm_id *cm_id;
	/*
	 * Of a connection; it points back while the endpoint is in the table, which holds a
	 * reference for that time.
	 */
	struct urdma_qp *qp;
	/* Allocated in advance, because ending must not fail; NULL once it is sent. */
	struct urdma_note *farewell;
	/* Of a listener: urdmad has answered. */
	struct completion answered;
	int status;
};

static struct urdma_note *urdma_note(enum urdma_cm_kind kind, u32 id)
{
	struct urdma_note *note = kzalloc(sizeof(*note), GFP_KERNEL_ACCOUNT);

	if (note) {
		note->message.kind = kind;
		note->message.id = id;
	}
	return note;
}

static void urdma_put_address(const struct sockaddr_storage *from, u8 ip[16], u16 *port)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
	struct in6_addr mapped;

	if (from->ss_family == AF_INET) {
		ipv6_addr_set_v4mapped(v4->sin_addr.s_addr, &mapped);
		memcpy(ip, &mapped, sizeof(mapped));
		*port = ntohs(v4->sin_port);
	} else {
		memcpy(ip, &v6->sin6_addr, sizeof(v6->sin6_addr));
		*port = ntohs(v6->sin6_port);
	}
}

/* Uses the listener's family, so that iw_cm's users see the family that they bound. */
static void urdma_get_address(struct sockaddr_storage *to, sa_family_t family, const u8 ip[16],
			      u16 port)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)to;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;

	memset(to, 0, sizeof(*to));
	to->ss_family = family;
	if (family == AF_INET) {
		memcpy(&v4->sin_addr, ip + 12, sizeof(v4->sin_addr));
		v4->sin_port = htons(port);
	} else {
		memcpy(&v6->sin6_addr, ip, sizeof(v6->sin6_addr));
		v6->sin6_port = htons(port);
	}
}

static int urdma_put_private(struct urdma_cm_message *message, const void *data, unsigned int len)
{
	if (len >= sizeof(message->private_data))
		return -EINVAL;
	if (len)
		memcpy(message->private_data, data, len);
	message->private_len = len;
	return 0;
}

static int urdma_put_param(struct urdma_cm_message *message, const struct iw_cm_conn_param *param)
{
	message->qpn = param->qpn;
	message->ord = min_t(u32, param->ord, U8_MAX);
	message->ird = min_t(u32, param->ird, U8_MAX);
	return urdma_put_private(message, param->private_data, param->private_data_len);
}

static void urdma_ep_free(struct urdma_ep *ep)
{
	kfree(ep->farewell);
	kfree(ep);
}

/* An endpoint that is not in the table; with `id` 0 a new id is reserved. */
static struct urdma_ep *urdma_ep_new(struct iw_cm_id *cm_id, enum urdma_ep_state state, u32 id)
{
	struct urdma_dev *dev = to_urdma_dev(cm_id->device);
	struct urdma_ep *ep = kzalloc(sizeof(*ep), GFP_KERNEL_ACCOUNT);
	int ret;

	if (!ep)
		return ERR_PTR(-ENOMEM);
	ep->dev = dev;
	ep->cm_id = cm_id;
	ep->state = state;
	init_completion(&ep->answered);
	ep->farewell = urdma_note(URDMA_CM_END, 0);
	if (!ep->farewell) {
		urdma_ep_free(ep);
		return ERR_PTR(-ENOMEM);
	}
	if (id)
		ret = xa_insert(&dev->eps, id, NULL, GFP_KERNEL);
	else
		ret = xa_alloc_cyclic(&dev->eps, &id, NULL, XA_LIMIT(1, URDMA_ID_OF_REQUEST - 1),
				      &dev->next_ep, GFP_KERNEL);
	if (ret < 0) {
		urdma_ep_free(ep);
		return ERR_PTR(ret);
	}
	ep->id = id;
	ep->farewell->message.id = id;
	return ep;
}

/* Frees an endpoint that is not visible to others. */
static void urdma_ep_discard(struct urdma_ep *ep)
{
	xa_erase(&ep->dev->eps, ep->id);
	urdma_ep_free(ep);
}

/*
 * Adds the endpoint to the table and sends its message to urdmad. The caller holds a reference to
 * the queue pair; it may have been destroyed since it was found, and would then never end the
 * endpoint.
 */
static int urdma_ep_announce(struct urdma_ep *ep, struct urdma_qp *qp, struct urdma_note *note)
{
	struct urdma_dev *dev = ep->dev;
	int ret;

	spin_lock(&dev->cm_lock);
	if (qp && (qp->is_gone || qp->ep)) {
		ret = qp->is_gone ? -EINVAL : -EISCONN;
		kfree(note);
	} else {
		ret = urdma_agent_send(dev, note);
	}
	if (!ret) {
		/* The entry is reserved, so this allocates nothing. */
		xa_store(&dev->eps, ep->id, ep, GFP_ATOMIC);
		ep->cm_id->add_ref(ep->cm_id);
		ep->cm_id->provider_data = ep;
		ep->qp = qp;
		if (qp) {
			refcount_inc(&qp->refs);
			qp->ep = ep;
		}
		urdma_count(&dev->ib, URDMA_ENDPOINTS, 1);
	}
	spin_unlock(&dev->cm_lock);
	return ret;
}

static void urdma_ep_event(struct urdma_ep *ep, enum iw_cm_event_type kind, int status,
			   const struct urdma_cm_message *message)
{
	struct iw_cm_event event = {
		.event = kind,
		.status = status,
		.local_addr = ep->cm_id->local_addr,
		.remote_addr = ep->cm_id->remote_addr,
	};

	if (message) {
		event.private_data = (void *)message->private_data;
		event.private_data_len = message->private_len;
		event.ord = message->ord;
		event.ird = message->ird;
	}
	ep->cm_id->event_handler(ep->cm_id, &event);
}

static void urdma_ep_say_farewell(struct urdma_ep *ep)
{
	if (ep->farewell) {
		/* Without an urdmad there is no recipient. */
		urdma_agent_send(ep->dev, ep->farewell);
		ep->farewell = NULL;
	}
}

/*
 * Ends an endpoint that is in the table; under cm_lock. iw_cm allocated these events when the
 * endpoint was created.
 */
static void urdma_ep_end(struct urdma_ep *ep, int status, const struct urdma_cm_message *message)
{
	switch (ep->state) {
	case URDMA_EP_LISTENING:
		break;
	case URDMA_EP_CONNECTING:
		urdma_ep_event(ep, IW_CM_EVENT_CONNECT_REPLY, status, message);
		break;
	case URDMA_EP_ACCEPTING:
		/* There is no event for a failed accept. */
		urdma_ep_event(ep, IW_CM_EVENT_ESTABLISHED, 0, NULL);
		fallthrough;
	case URDMA_EP_ESTABLISHED:
		urdma_ep_event(ep, IW_CM_EVENT_CLOSE, 0, NULL);
		break;
	}
	xa_erase(&ep->dev->eps, ep->id);
	if (ep->qp) {
		/* The events above may have made iw_cm drop its own reference. */
		ep->qp->ep = NULL;
		urdma_qp_put(ep->qp);
	}
	urdma_count(&ep->dev->ib, URDMA_ENDPOINTS, -1);
	ep->cm_id->rem_ref(ep->cm_id);
	urdma_ep_free(ep);
}

/*
 * iw_cm and the caller name queue pairs by number: it must be the caller's. With a reference. It is
 * the queue pair that iw_cm has found, whose number is not free before iw_cm drops its reference.
 */
static struct urdma_qp *urdma_own_qp(struct iw_cm_id *cm_id, u32 qpn)
{
	struct urdma_qp *qp = urdma_qp_find(to_urdma_dev(cm_id->device), qpn);

	if (qp && !uid_eq(qp->owner, current_euid())) {
		urdma_qp_put(qp);
		return NULL;
	}
	return qp;
}

static int urdma_connect(struct iw_cm_id *cm_id, struct urdma_qp *qp,
			 const struct iw_cm_conn_param *param)
{
	struct urdma_note *note;
	struct urdma_ep *ep;
	int ret;

	ep = urdma_ep_new(cm_id, URDMA_EP_CONNECTING, 0);
	if (IS_ERR(ep))
		return PTR_ERR(ep);
	note = urdma_note(URDMA_CM_CONNECT, ep->id);
	if (!note) {
		urdma_ep_discard(ep);
		return -ENOMEM;
	}
	urdma_put_address(&cm_id->local_addr, note->message.local, &note->message.local_port);
	urdma_put_address(&cm_id->remote_addr, note->message.remote, &note->message.remote_port);
	ret = urdma_put_param(&note->message, param);
	if (ret)
		kfree(note);
	else
		ret = urdma_ep_announce(ep, qp, note);
	if (ret)
		urdma_ep_discard(ep);
	return ret;
}

int urdma_iw_connect(struct iw_cm_id *cm_id, struct iw_cm_conn_param *param)
{
	struct urdma_qp *qp = urdma_own_qp(cm_id, param->qpn);
	int ret;

	if (!qp)
		return -EINVAL;
	ret = urdma_connect(cm_id, qp, param);
	urdma_qp_put(qp);
	return ret;
}

/* The number of a request that iw_cm has not decided. */
static u32 urdma_request_id(const struct iw_cm_id *cm_id)
{
	return (u32)(uintptr_t)cm_id->provider_data;
}

static int urdma_reject(struct iw_cm_id *cm_id, int status, const void *data, u8 len)
{
	struct urdma_note *note = urdma_note(URDMA_CM_REJECT, urdma_request_id(cm_id));
	int ret;

	if (!note)
		return -ENOMEM;
	note->message.status = status;
	ret = urdma_put_private(&note->message, data, len);
	if (ret) {
		kfree(note);
		return ret;
	}
	return urdma_agent_send(to_urdma_dev(cm_id->device), note);
}

/*
 * A rejection by an application has private data, possibly empty. One by iw_cm, for a listener that
 * is gone, has none.
 */
int urdma_iw_reject(struct iw_cm_id *cm_id, const void *data, u8 len)
{
	return urdma_reject(cm_id, data ? 0 : -ECONNABORTED, data, len);
}

static int urdma_accept(struct iw_cm_id *cm_id, struct urdma_qp *qp,
			const struct iw_cm_conn_param *param)
{
	struct urdma_note *note;
	struct urdma_ep *ep;
	int ret;

	ep = urdma_ep_new(cm_id, URDMA_EP_ACCEPTING, urdma_request_id(cm_id));
	if (IS_ERR(ep))
		return PTR_ERR(ep);
	note = urdma_note(URDMA_CM_ACCEPT, ep->id);
	if (!note) {
		urdma_ep_discard(ep);
		return -ENOMEM;
	}
	ret = urdma_put_param(&note->message, param);
	if (ret)
		kfree(note);
	else
		ret = urdma_ep_announce(ep, qp, note);
	if (ret)
		urdma_ep_discard(ep);
	return ret;
}

int urdma_iw_accept(struct iw_cm_id *cm_id, struct iw_cm_conn_param *param)
{
	struct urdma_qp *qp = urdma_own_qp(cm_id, param->qpn);
	int ret = -EINVAL;

	if (qp) {
		ret = urdma_accept(cm_id, qp, param);
		urdma_qp_put(qp);
	}
	if (ret)
		urdma_reject(cm_id, 0, NULL, 0);
	return ret;
}

int urdma_iw_create_listen(struct iw_cm_id *cm_id, int backlog)
{
	struct urdma_note *note;
	struct urdma_ep *ep;
	long left;
	int ret;

	ep = urdma_ep_new(cm_id, URDMA_EP_LISTENING, 0);
	if (IS_ERR(ep))
		return PTR_ERR(ep);
	note = urdma_note(URDMA_CM_LISTEN, ep->id);
	if (!note) {
		urdma_ep_discard(ep);
		return -ENOMEM;
	}
	urdma_put_address(&cm_id->local_addr, note->message.local, &note->message.local_port);
	note->message.backlog = max(backlog, 1);
	note->message.pid = urdma_agent_pid(to_urdma_dev(cm_id->device));
	ret = urdma_ep_announce(ep, NULL, note);
	if (ret) {
		urdma_ep_discard(ep);
		return ret;
	}
	left = wait_for_completion_killable_timeout(&ep->answered, URDMA_LISTEN_TIMEOUT);
	ret = left > 0 ? ep->status : left ? -EINTR : -ETIMEDOUT;
	if (ret)
		urdma_iw_destroy_listen(cm_id);
	return ret;
}

int urdma_iw_destroy_listen(struct iw_cm_id *cm_id)
{
	struct urdma_ep *ep = cm_id->provider_data;
	struct urdma_dev *dev = ep->dev;

	spin_lock(&dev->cm_lock);
	urdma_ep_say_farewell(ep);
	urdma_ep_end(ep, 0, NULL);
	spin_unlock(&dev->cm_lock);
	return 0;
}

/* Asks urdmad to end the connection of a queue pair, if it has one; urdmad reports the result. */
void urdma_cm_disconnect(struct urdma_qp *qp)
{
	struct urdma_dev *dev = to_urdma_dev(qp->ib.device);

	spin_lock(&dev->cm_lock);
	if (qp->ep)
		urdma_ep_say_farewell(qp->ep);
	spin_unlock(&dev->cm_lock);
}

/* The queue pair is destroyed; its connection ends without waiting for urdmad. */
void urdma_cm_qp_gone(struct urdma_qp *qp)
{
	struct urdma_dev *dev = to_urdma_dev(qp->ib.device);

	spin_lock(&dev->cm_lock);
	qp->is_gone = true;
	if (qp->ep) {
		urdma_ep_say_farewell(qp->ep);
		urdma_ep_end(qp->ep, -ECONNRESET, NULL);
	}
	spin_unlock(&dev->cm_lock);
}

/* urdmad is gone: all connections and listeners end. */
void urdma_cm_agent_gone(struct urdma_dev *dev)
{
	struct urdma_ep *ep;
	unsigned long id;

	spin_lock(&dev->cm_lock);
	xa_for_each(&dev->eps, id, ep) {
		if (ep->state != URDMA_EP_LISTENING) {
			urdma_ep_end(ep, -ECONNRESET, NULL);
		} else if (!completion_done(&ep->answered)) {
			ep->status = -ENODEV;
			complete(&ep->answered);
		}
	}
	spin_unlock(&dev->cm_lock);
}

/* A connection request from urdmad for a listener. */
static int urdma_cm_request(struct urdma_dev *dev, const struct urdma_cm_message *message)
{
	struct urdma_ep *ep = xa_load(&dev->eps, message->listener);
	struct iw_cm_event event = {
		.event = IW_CM_EVENT_CONNECT_REQUEST,
		.private_data = (void *)message->private_data,
		.private_data_len = message->private_len,
		.ord = message->ord,
		.ird = message->ird,
		.provider_data = (void *)(uintptr_t)message->id,
	};
	sa_family_t family;

	if (!ep || ep->state != URDMA_EP_LISTENING)
		return -ENOENT;
	if (!(message->id & URDMA_ID_OF_REQUEST))
		return -EINVAL;
	family = ep->cm_id->local_addr.ss_family;
	urdma_get_address(&event.local_addr, family, message->local, message->local_port);
	urdma_get_address(&event.remote_addr, family, message->remote, message->remote_port);
	/* -ENOMEM if the backlog is full. */
	return ep->cm_id->event_handler(ep->cm_id, &event);
}

/* Handles a private copy of a message from urdmad; under cm_lock. */
static int urdma_cm_answer(struct urdma_dev *dev, const struct urdma_cm_message *message)
{
	struct urdma_ep *ep;

	if (message->kind == URDMA_CM_REQUEST)
		return urdma_cm_request(dev, message);
	ep = xa_load(&dev->eps, message->id);
	if (!ep)
		return -ENOENT;
	switch (message->kind) {
	case URDMA_CM_LISTENING:
		if (ep->state != URDMA_EP_LISTENING || completion_done(&ep->answered))
			return -EINVAL;
		ep->status = message->status;
		complete(&ep->answered);
		return 0;
	case URDMA_CM_REPLY:
		if (ep->state != URDMA_EP_CONNECTING)
			return -EINVAL;
		if (message->status) {
			urdma_ep_end(ep, message->status, message);
		} else {
			ep->state = URDMA_EP_ESTABLISHED;
			urdma_ep_event(ep, IW_CM_EVENT_CONNECT_REPLY, 0, message);
		}
		return 0;
	case URDMA_CM_ESTABLISHED:
		if (ep->state != URDMA_EP_ACCEPTING)
			return -EINVAL;
		ep->state = URDMA_EP_ESTABLISHED;
		urdma_ep_event(ep, IW_CM_EVENT_ESTABLISHED, 0, message);
		return 0;
	case URDMA_CM_CLOSED:
		if (ep->state == URDMA_EP_LISTENING)
			return -EINVAL;
		urdma_ep_end(ep, -ECONNRESET, message);
		return 0;
	default:
		return -EINVAL;
	}
}

int urdma_cm_take(struct urdma_dev *dev, const struct urdma_cm_message *message)
{
	int ret;

	if (message->status > 0 || message->status < -MAX_ERRNO)
		return -EINVAL;
	spin_lock(&dev->cm_lock);
	ret = urdma_cm_answer(dev, message);
	spin_unlock(&dev->cm_lock);
	return ret;
}
