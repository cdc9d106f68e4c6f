/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Extended Sockets (EXS): asynchronous byte streams and messages over RDMA.
 *
 * Calls that take a queue post an operation and return at once; its event comes in the queue. All
 * calls return -1 and set errno if they fail. exs_init(3) and the other manual pages describe them.
 */
#ifndef URDMA_EXS_H
#define URDMA_EXS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface, for exs_init. */
#define EXS_VERSION 1

/* What registered memory is used for. */
#define EXS_ACCESS_READ 1 /* exs_send */
#define EXS_ACCESS_WRITE 2 /* exs_recv */
#define EXS_ACCESS_RDWR (EXS_ACCESS_READ | EXS_ACCESS_WRITE)

/* Registered memory. */
typedef uintptr_t exs_mhandle_t;
#define EXS_MHANDLE_INVALID ((exs_mhandle_t)0)

/* An event queue: a descriptor that poll and epoll report as readable while it has an event. */
typedef int exs_qhandle_t;
#define EXS_QHANDLE_INVALID ((exs_qhandle_t)-1)

/* What the application calls an operation; the library does not interpret it. */
typedef void *exs_ahandle_t;

/* exs_evt_type */
enum {
	EXS_EVT_SEND = 1,
	EXS_EVT_RECV = 2,
	EXS_EVT_SENDFILE = 3,
	EXS_EVT_ACCEPT = 4,
	EXS_EVT_CONNECT = 5
};

/* The end of an operation. */
typedef struct exs_event {
	int exs_evt_type;
	int exs_evt_errno; /* 0: success */
	int exs_evt_socket; /* the socket of the call */
	exs_ahandle_t exs_evt_ahandle; /* that of the call */
	union {
		/* EXS_EVT_SEND, EXS_EVT_RECV, EXS_EVT_SENDFILE */
		struct {
			void *exs_evt_buffer; /* that of the call */
			size_t exs_evt_length; /* octets transferred */
			exs_mhandle_t exs_evt_mhandle; /* that of the call */
		} exs_evt_xfer;
		/* EXS_EVT_ACCEPT */
		struct {
			int exs_evt_new_socket; /* -1 if exs_evt_errno is not 0 */
		} exs_evt_accept;
	} exs_evt_union;
} exs_event_t;

int exs_init(int version);

exs_mhandle_t exs_mregister(void *buf, size_t len, int access);
int exs_mderegister(exs_mhandle_t mh);

exs_qhandle_t exs_qcreate(int depth);
int exs_qdequeue(exs_qhandle_t qh, exs_event_t *events, int count, const struct timeval *timeout);
int exs_qdelete(exs_qhandle_t qh);

int exs_socket(int domain, int type, int protocol);
int exs_bind(int fd, const struct sockaddr *addr, socklen_t addrlen);
int exs_listen(int fd, int backlog);
int exs_accept(int fd, struct sockaddr *addr, socklen_t *addrlen, int flags, exs_ahandle_t ah,
	       exs_qhandle_t qh);
int exs_connect(int fd, const struct sockaddr *addr, socklen_t addrlen, int flags,
		exs_ahandle_t ah, exs_qhandle_t qh);
int exs_send(int fd, const void *buf, size_t len, int flags, exs_mhandle_t mh, exs_ahandle_t ah,
	     exs_qhandle_t qh);
int exs_recv(int fd, void *buf, size_t len, int flags, exs_mhandle_t mh, exs_ahandle_t ah,
	     exs_qhandle_t qh);
int exs_sendfile(int fd, int file, off_t offset, size_t len, int flags, exs_ahandle_t ah,
		 exs_qhandle_t qh);
int exs_cancel(int fd, exs_ahandle_t ah);
int exs_shutdown(int fd, int how);
int exs_close(int fd);

#ifdef __cplusplus
}
#endif

#endif
