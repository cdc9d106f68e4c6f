/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Shared by programs that check their calls. */
#ifndef REQUIRE_H
#define REQUIRE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with what failed, and errno, unless the condition holds. */
#define REQUIRE(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
				strerror(errno)); \
			exit(1); \
		} \
	} while (0)

#endif
