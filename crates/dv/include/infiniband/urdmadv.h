/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * urdmadv: the dynamically connected transport of urdma's device, beside libibverbs.
 *
 * Names and order of calls are those of mlx5dv with another prefix. urdmadv_create_qp(3) describes
 * them; programs are linked with -lurdmadv -libverbs.
 */
#ifndef INFINIBAND_URDMADV_H
#define INFINIBAND_URDMADV_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the device is one of urdma; a device of iWARP has no queue pairs of this header. */
bool urdmadv_is_supported(struct ibv_device *device);

enum urdmadv_qp_init_attr_mask {
	URDMADV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS = 1 << 0,
	URDMADV_QP_INIT_ATTR_MASK_DC = 1 << 1,
};

/* Hints of mlx5dv, which have no effect. */
enum urdmadv_qp_create_flags {
	URDMADV_QP_CREATE_DISABLE_SCATTER_TO_CQE = 1 << 3,
	URDMADV_QP_CREATE_ALLOW_SCATTER_TO_CQE = 1 << 4,
};

enum urdmadv_dc_type {
	URDMADV_DCTYPE_DCT = 1,		/* a target */
	URDMADV_DCTYPE_DCI,		/* an initiator */
};

struct urdmadv_dc_init_attr {
	enum urdmadv_dc_type dc_type;
	uint64_t dct_access_key;	/* of a target: what its initiators must know */
};

struct urdmadv_qp_init_attr {
	uint64_t comp_mask;		/* enum urdmadv_qp_init_attr_mask */
	uint32_t create_flags;		/* enum urdmadv_qp_create_flags */
	struct urdmadv_dc_init_attr dc_init_attr;
};

/*
 * Creates a queue pair of the type IBV_QPT_DRIVER; without URDMADV_QP_INIT_ATTR_MASK_DC, or with
 * NULL for attr, as ibv_create_qp_ex(3) does. NULL with errno on failure.
 */
struct ibv_qp *urdmadv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *qp_attr,
				 struct urdmadv_qp_init_attr *attr);

/* Made by urdmadv_qp_ex_from_ibv_qp_ex(); later versions append calls. */
struct urdmadv_qp_ex {
	uint64_t comp_mask;
	void (*wr_set_dc_addr)(struct urdmadv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_dctn,
			       uint64_t remote_dc_key);
};

/* NULL if the queue pair is no initiator. */
struct urdmadv_qp_ex *urdmadv_qp_ex_from_ibv_qp_ex(struct ibv_qp_ex *qp);

/* Names the target of the request that is being built. */
static inline void urdmadv_wr_set_dc_addr(struct urdmadv_qp_ex *qp, struct ibv_ah *ah,
					  uint32_t remote_dctn, uint64_t remote_dc_key)
{
	qp->wr_set_dc_addr(qp, ah, remote_dctn, remote_dc_key);
}

/*
 * Why the last of these calls of this thread was refused, in a sentence: urdmadv_create_qp(), and
 * ibv_modify_qp(3) and ibv_wr_complete(3) of a queue pair that it has made. NULL if it was not, or
 * if errno is all there is to say. The sentence is never freed.
 */
const char *urdmadv_last_error(struct ibv_context *context);

#ifdef __cplusplus
}
#endif

#endif
