// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Driver methods by which the engine raises events. uverbs has looked up the object and holds it.
 *
 * uverbs allocates every event from memory that no limit counts, and keeps it until the process
 * reads it. The number of unread events of an object is therefore bounded here.
 */
#define UVERBS_MODULE_NAME urdma

#include <linux/module.h>
#include <rdma/uverbs_ioctl.h>
#include <rdma/uverbs_named_ioctl.h>

#include "urdma.h"

/* Unread events of a queue or a shared receive queue: all are alike, so that one says it. */
#define URDMA_UNREAD_ALIKE 1

/* Unread events of a queue pair. Further ones are lost, as they are without memory. */
#define URDMA_UNREAD_QP 64

/*
 * The layout of uverbs' objects for queue pairs and shared receive queues, of which Linux exports
 * only the first part. urdma_unread_init checks it when an object is created.
 */
struct urdma_uevent_object {
	struct ib_uobject uobject;
	void *event_file;
	/* The unread asynchronous events. */
	struct list_head event_list;
	u32 events_reported;
};

/* The same for completion queues. */
struct urdma_ucq_object {
	struct urdma_uevent_object uevent;
	/* The unread completion events. */
	struct list_head comp_list;
	u32 comp_events_reported;
};

/* uverbs has initialised the list of an object that is being created, and it has no events yet. */
static int urdma_unread_init(struct urdma_unread *unread, const struct list_head *list)
{
	if (READ_ONCE(list->next) != list || READ_ONCE(list->prev) != list) {
		pr_err_once("urdma: uverbs of this kernel keeps unread events elsewhere\n");
		return -EOPNOTSUPP;
	}
	spin_lock_init(&unread->lock);
	unread->list = list;
	return 0;
}

int urdma_cq_events_init(struct urdma_cq *cq)
{
	struct urdma_ucq_object *object = (struct urdma_ucq_object *)cq->ib.uobject;

	return urdma_unread_init(&cq->unread, &object->comp_list);
}

int urdma_srq_events_init(struct urdma_srq *srq)
{
	struct urdma_uevent_object *object = (struct urdma_uevent_object *)srq->ib.uobject;

	return urdma_unread_init(&srq->unread, &object->event_list);
}

int urdma_qp_events_init(struct urdma_qp *qp)
{
	struct urdma_uevent_object *object = (struct urdma_uevent_object *)qp->ib.uobject;

	return urdma_unread_init(&qp->unread, &object->event_list);
}

/* Whether an event may be raised, at most `limit` unread ones; under the lock. */
static bool urdma_unread_add(struct urdma_unread *unread, unsigned int limit)
{
	/*
	 * The cause of the event is visible before the list is looked at: a thread that removes an
	 * event from the list afterwards, and then looks for the cause, finds it.
	 */
	smp_mb();
	if (list_empty(unread->list))
		unread->raised = 0;
	if (unread->raised == limit)
		return false;
	unread->raised++;
	return true;
}

static int UVERBS_HANDLER(URDMA_METHOD_CQ_RAISE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_cq *ib = uverbs_attr_get_obj(attrs, URDMA_ATTR_CQ_RAISE_HANDLE);
	struct urdma_cq *cq = container_of(ib, struct urdma_cq, ib);

	if (!ib->comp_handler)
		return -EINVAL;
	spin_lock(&cq->unread.lock);
	if (urdma_unread_add(&cq->unread, URDMA_UNREAD_ALIKE)) {
		ib->comp_handler(ib, ib->cq_context);
		urdma_count(ib->device, URDMA_CQ_EVENTS, 1);
	}
	spin_unlock(&cq->unread.lock);
	return 0;
}

static int UVERBS_HANDLER(URDMA_METHOD_QP_RAISE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_qp *ib = uverbs_attr_get_obj(attrs, URDMA_ATTR_QP_RAISE_HANDLE);
	struct urdma_qp *qp = container_of(ib, struct urdma_qp, ib);
	struct ib_event event = { .device = ib->device, .element.qp = ib };
	u32 kind;
	int ret;

	ret = uverbs_copy_from(&kind, attrs, URDMA_ATTR_QP_RAISE_EVENT);
	if (ret)
		return ret;
	switch (kind) {
	case IB_EVENT_QP_FATAL:
	case IB_EVENT_QP_REQ_ERR:
	case IB_EVENT_QP_ACCESS_ERR:
	case IB_EVENT_COMM_EST:
	case IB_EVENT_SQ_DRAINED:
	case IB_EVENT_QP_LAST_WQE_REACHED:
		break;
	default:
		return -EINVAL;
	}
	if (!ib->event_handler)
		return -EINVAL;
	event.event = kind;
	spin_lock(&qp->unread.lock);
	if (urdma_unread_add(&qp->unread, URDMA_UNREAD_QP)) {
		ib->event_handler(&event, ib->qp_context);
		urdma_count(ib->device, URDMA_QP_EVENTS, 1);
	} else {
		ret = -ENOBUFS;
	}
	spin_unlock(&qp->unread.lock);
	return ret;
}

static int UVERBS_HANDLER(URDMA_METHOD_SRQ_RAISE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_srq *ib = uverbs_attr_get_obj(attrs, URDMA_ATTR_SRQ_RAISE_HANDLE);
	struct urdma_srq *srq = container_of(ib, struct urdma_srq, ib);
	struct ib_event event = {
		.device = ib->device,
		.element.srq = ib,
		.event = IB_EVENT_SRQ_LIMIT_REACHED,
	};

	if (!ib->event_handler)
		return -EINVAL;
	spin_lock(&srq->unread.lock);
	if (urdma_unread_add(&srq->unread, URDMA_UNREAD_ALIKE)) {
		ib->event_handler(&event, ib->srq_context);
		urdma_count(ib->device, URDMA_QP_EVENTS, 1);
	}
	spin_unlock(&srq->unread.lock);
	return 0;
}

DECLARE_UVERBS_NAMED_METHOD(URDMA_METHOD_CQ_RAISE,
			    UVERBS_ATTR_IDR(URDMA_ATTR_CQ_RAISE_HANDLE, UVERBS_OBJECT_CQ,
					    UVERBS_ACCESS_READ, UA_MANDATORY));
DECLARE_UVERBS_NAMED_METHOD(URDMA_METHOD_QP_RAISE,
			    UVERBS_ATTR_IDR(URDMA_ATTR_QP_RAISE_HANDLE, UVERBS_OBJECT_QP,
					    UVERBS_ACCESS_READ, UA_MANDATORY),
			    UVERBS_ATTR_PTR_IN(URDMA_ATTR_QP_RAISE_EVENT, UVERBS_ATTR_TYPE(u32),
					       UA_MANDATORY));
DECLARE_UVERBS_NAMED_METHOD(URDMA_METHOD_SRQ_RAISE,
			    UVERBS_ATTR_IDR(URDMA_ATTR_SRQ_RAISE_HANDLE, UVERBS_OBJECT_SRQ,
					    UVERBS_ACCESS_READ, UA_MANDATORY));

ADD_UVERBS_METHODS(urdma_cq_methods, UVERBS_OBJECT_CQ, &UVERBS_METHOD(URDMA_METHOD_CQ_RAISE));
ADD_UVERBS_METHODS(urdma_qp_methods, UVERBS_OBJECT_QP, &UVERBS_METHOD(URDMA_METHOD_QP_RAISE));
ADD_UVERBS_METHODS(urdma_srq_methods, UVERBS_OBJECT_SRQ, &UVERBS_METHOD(URDMA_METHOD_SRQ_RAISE));

const struct uapi_definition urdma_uapi_definitions[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_CQ, &urdma_cq_methods),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_QP, &urdma_qp_methods),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_SRQ, &urdma_srq_methods),
	{},
};
