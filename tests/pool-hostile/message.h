/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages of a pool, in octets, for programs that know no rule of the protocol. */
#ifndef POOL_HOSTILE_MESSAGE_H
#define POOL_HOSTILE_MESSAGE_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "../exs-c-check/require.h"

#define HEADER_OCTETS 32
#define KINDS 256
#define OPEN 1
#define ACCEPT 2
/* What is behind a header, and what an RDMA Write carries. */
#define MARK 0xbd

static time_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

static uint64_t big_endian_64(const uint8_t *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return be64toh(word);
}

static uint8_t *put(uint8_t *at, uint64_t number, size_t octets)
{
	for (size_t i = 0; i < octets; i++)
		at[i] = (uint8_t)(number >> (8 * (octets - 1 - i)));
	return at + octets;
}

static size_t octets_of(const char *text, size_t digits, uint8_t *to, size_t room)
{
	REQUIRE(digits / 2 <= room);
	for (size_t i = 0; i < digits / 2; i++)
		REQUIRE(sscanf(text + 2 * i, "%2hhx", &to[i]) == 1);
	return digits / 2;
}

/* An end, in hexadecimal; with d before it, relative to what the pool has named. */
static uint64_t end_of(const char *text, uint64_t named)
{
	bool is_relative = *text == 'd';

	return strtoull(text + is_relative, NULL, 16) + (is_relative ? named : 0);
}

/*
 * KIND:FLAGS:DESTINATION:SOURCE:SEQUENCE:RECEIVES:BUFFERS:IMMEDIATE:LENGTH as a header with LENGTH
 * octets behind it; BUFFERS is relative to the number of those that are posted. All its octets.
 */
static size_t compose(const char *text, uint64_t named, uint16_t posted, uint8_t *at, size_t room)
{
	unsigned int kind, flags, sequence, receives, immediate, length;
	char destination[20], source[20];
	int buffers;

	REQUIRE(sscanf(text, "%u:%u:%19[^:]:%19[^:]:%u:%u:%d:%u:%u", &kind, &flags, destination,
		       source, &sequence, &receives, &buffers, &immediate, &length) == 9);
	REQUIRE(length <= room - HEADER_OCTETS);
	at = put(at, end_of(destination, named), 8);
	at = put(at, end_of(source, named), 8);
	at = put(at, sequence, 4);
	at = put(at, receives, 4);
	at = put(at, kind, 1);
	at = put(at, flags, 1);
	at = put(at, (uint64_t)(posted + buffers), 2);
	at = put(at, immediate, 4);
	memset(at, MARK, length);
	return HEADER_OCTETS + length;
}

#endif
