/*
 * Selects the frames that an AF_XDP port takes from its network interface: UDP datagrams to the
 * ports of urdma's slots. All other frames, ARP and neighbour discovery included, go to the kernel,
 * whose address the port shares.
 *
 * DPDK's net_af_xdp loads this program (device argument "xdp_prog") and puts its socket into
 * "xsks_map", a name that the driver prescribes.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#define SECTION(name) __attribute__((section(name), used))

struct {
	int (*type)[BPF_MAP_TYPE_XSKMAP];
	int (*max_entries)[QUEUES_MAX];
	__u32 *key;
	__u32 *value;
} xsks_map SECTION(".maps");

static long (*const redirect_map)(void *map, __u64 key,
				  __u64 otherwise) = (void *)BPF_FUNC_redirect_map;

/*
 * Each protocol has a check of its own, and no pointer may be 0: without CAP_PERFMON the verifier
 * of Linux 6.1 follows paths that only a speculating processor takes. There a pointer that may be 0
 * is a number, and the program is refused for its comparison.
 */
SECTION("xdp") int urdma_steer(struct xdp_md *frame)
{
	const void *end = (const void *)(long)frame->data_end;
	const struct ethhdr *ethernet = (const void *)(long)frame->data;
	const struct udphdr *udp;
	__u16 port;

	if ((const void *)(ethernet + 1) > end)
		return XDP_PASS;
	if (ethernet->h_proto == __builtin_bswap16(ETH_P_IP)) {
		const struct iphdr *ip = (const void *)(ethernet + 1);

		udp = (const void *)(ip + 1);
		if ((const void *)(udp + 1) > end || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
			return XDP_PASS;
		/* Ours have neither options nor fragments. */
		if (ip->frag_off & __builtin_bswap16(0x3fff))
			return XDP_PASS;
		port = __builtin_bswap16(udp->dest);
	} else if (ethernet->h_proto == __builtin_bswap16(ETH_P_IPV6)) {
		const struct ipv6hdr *ip = (const void *)(ethernet + 1);

		udp = (const void *)(ip + 1);
		if ((const void *)(udp + 1) > end || ip->nexthdr != IPPROTO_UDP)
			return XDP_PASS;
		port = __builtin_bswap16(udp->dest);
	} else {
		return XDP_PASS;
	}
	if (port < PORT_FIRST || port > PORT_LAST)
		return XDP_PASS;
	/* Without a socket for that queue the frame goes to the kernel. */
	return redirect_map(&xsks_map, frame->rx_queue_index, XDP_PASS);
}

/* It uses no helper that asks for the GPL. */
const char license_text[] SECTION("license") = "Dual MIT/GPL";
