/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Differences between the kernels for which the module compiles, Linux 6.1 to 7.2. Kbuild looks in
 * the kernel's headers for what is tested here: distributions take changes into older kernels.
 */
#ifndef URDMA_COMPAT_H
#define URDMA_COMPAT_H

#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

/* The argument of create_cq that shows that a process creates the queue. */
#ifdef URDMA_CQ_HAS_BUNDLE
#define urdma_cq_caller uverbs_attr_bundle
#else
#define urdma_cq_caller ib_udata
#endif

/* A second operation, for the completion queues of processes. */
#ifdef URDMA_HAS_CREATE_USER_CQ
#define URDMA_CREATE_USER_CQ(create) .create_user_cq = (create),
#else
#define URDMA_CREATE_USER_CQ(create)
#endif

/* A DMA handle of reg_user_mr, which is refused: these regions are the engine's. */
#ifdef URDMA_HAS_DMAH
#define URDMA_DMAH_ARGUMENT struct ib_dmah *dmah,
#define URDMA_DMAH_GIVEN (dmah != NULL)
#else
#define URDMA_DMAH_ARGUMENT
#define URDMA_DMAH_GIVEN false
#endif

/* Pins memory of the calling process. */
static inline struct ib_umem *urdma_umem_get(struct ib_device *device, unsigned long start,
					     size_t length, int access)
{
#ifdef URDMA_HAS_UMEM_GET_VA
	return ib_umem_get_va(device, start, length, access);
#else
	return ib_umem_get(device, start, length, access);
#endif
}

#endif
