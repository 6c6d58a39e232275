/*
 * The data path in C, with nothing above it: what ours is measured against.
 *
 * Per message one receive of 64 bytes and one signaled send of 64 bytes are posted, then the
 * completion queue is polled, 16 completions at a time, until both were seen. With a batch, chains of
 * so many of each are posted with one call each.
 *
 * benches/c_loop compiles it (cc -O2 -shared -fPIC; libibverbs-dev has the header) and calls it.
 */

#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_AT_ONCE 16
#define MOST_BATCH 64

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC_RAW, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Polls until so many completions were seen; 0 when one of them failed, or the poll did. */
static int drain(struct ibv_cq *cq, unsigned int count)
{
	struct ibv_wc wc[POLL_AT_ONCE];
	int i, n;

	while (count) {
		n = ibv_poll_cq(cq, POLL_AT_ONCE, wc);
		if (n < 0)
			return 0;
		for (i = 0; i < n; i++)
			if (wc[i].status != IBV_WC_SUCCESS)
				return 0;
		if ((unsigned int)n > count)
			return 0;
		count -= (unsigned int)n;
	}
	return 1;
}

/*
 * Nanoseconds for so many messages, one after the other; UINT64_MAX when one failed.
 */
static uint64_t one_by_one(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_sge send_sge,
			   struct ibv_sge recv_sge, uint64_t iterations)
{
	struct ibv_recv_wr recv, *bad_recv;
	struct ibv_send_wr send, *bad_send;
	uint64_t begin, n;

	memset(&recv, 0, sizeof(recv));
	memset(&send, 0, sizeof(send));
	begin = now();
	for (n = 0; n < iterations; n++) {
		recv.wr_id = n;
		recv.next = NULL;
		recv.sg_list = &recv_sge;
		recv.num_sge = 1;
		if (ibv_post_recv(qp, &recv, &bad_recv))
			return UINT64_MAX;
		send.wr_id = n;
		send.next = NULL;
		send.sg_list = &send_sge;
		send.num_sge = 1;
		send.opcode = IBV_WR_SEND;
		send.send_flags = IBV_SEND_SIGNALED;
		if (ibv_post_send(qp, &send, &bad_send))
			return UINT64_MAX;
		if (!drain(cq, 2))
			return UINT64_MAX;
	}
	return now() - begin;
}

/* The same with chains of `batch`; `iterations` is rounded up to whole chains. */
static uint64_t in_chains(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_sge send_sge,
			  struct ibv_sge recv_sge, uint64_t iterations, unsigned int batch)
{
	struct ibv_recv_wr recv[MOST_BATCH], *bad_recv;
	struct ibv_send_wr send[MOST_BATCH], *bad_send;
	uint64_t begin, n;
	unsigned int i;

	memset(recv, 0, sizeof(recv));
	memset(send, 0, sizeof(send));
	begin = now();
	for (n = 0; n < iterations; n += batch) {
		for (i = 0; i < batch; i++) {
			recv[i].wr_id = n + i;
			recv[i].next = i + 1 < batch ? &recv[i + 1] : NULL;
			recv[i].sg_list = &recv_sge;
			recv[i].num_sge = 1;
		}
		if (ibv_post_recv(qp, recv, &bad_recv))
			return UINT64_MAX;
		for (i = 0; i < batch; i++) {
			send[i].wr_id = n + i;
			send[i].next = i + 1 < batch ? &send[i + 1] : NULL;
			send[i].sg_list = &send_sge;
			send[i].num_sge = 1;
			send[i].opcode = IBV_WR_SEND;
			send[i].send_flags = IBV_SEND_SIGNALED;
		}
		if (ibv_post_send(qp, send, &bad_send))
			return UINT64_MAX;
		if (!drain(cq, 2 * batch))
			return UINT64_MAX;
	}
	return now() - begin;
}

/*
 * Nanoseconds for so many messages on a connected queue pair whose two completion queues are `cq`;
 * `batch` is 1 to 64. UINT64_MAX when something failed.
 */
uint64_t raw_loop(struct ibv_qp *qp, struct ibv_cq *cq, const struct ibv_sge *send_sge,
		  const struct ibv_sge *recv_sge, uint64_t iterations, unsigned int batch)
{
	if (batch == 0 || batch > MOST_BATCH)
		return UINT64_MAX;
	if (batch == 1)
		return one_by_one(qp, cq, *send_sge, *recv_sge, iterations);
	return in_chains(qp, cq, *send_sge, *recv_sge, iterations, batch);
}

/* A queue pair connected to itself, with all that it needs, made by C alone. */
struct raw_pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	struct ibv_sge send_sge, recv_sge;
};

static int connect_to_self(struct raw_pair *pair, int gid_index)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	if (ibv_modify_qp(pair->qp, &attr,
			  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return -1;
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = pair->qp->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.hop_limit = 64;
	attr.ah_attr.grh.sgid_index = (uint8_t)gid_index;
	if (ibv_query_gid(pair->context, 1, gid_index, &attr.ah_attr.grh.dgid))
		return -1;
	if (ibv_modify_qp(pair->qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				  IBV_QP_MIN_RNR_TIMER))
		return -1;
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	if (ibv_modify_qp(pair->qp, &attr,
			  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		return -1;
	return 0;
}

void raw_close(struct raw_pair *pair)
{
	if (!pair)
		return;
	if (pair->qp)
		ibv_destroy_qp(pair->qp);
	if (pair->cq)
		ibv_destroy_cq(pair->cq);
	if (pair->mr)
		ibv_dereg_mr(pair->mr);
	if (pair->pd)
		ibv_dealloc_pd(pair->pd);
	if (pair->context)
		ibv_close_device(pair->context);
	free(pair->memory);
	free(pair);
}

/* Such a pair on the device of this name, with queues of `depth`; NULL when there can be none. */
struct raw_pair *raw_open(const char *device, int gid_index, unsigned int depth)
{
	struct raw_pair *pair = calloc(1, sizeof(*pair));
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init;
	int i;

	if (!pair || !list)
		goto failed;
	for (i = 0; list[i]; i++)
		if (!strcmp(list[i]->name, device))
			pair->context = ibv_open_device(list[i]);
	if (!pair->context)
		goto failed;
	pair->memory = calloc(2, 4096);
	pair->pd = ibv_alloc_pd(pair->context);
	pair->cq = ibv_create_cq(pair->context, (int)(2 * depth), NULL, NULL, 0);
	if (!pair->memory || !pair->pd || !pair->cq)
		goto failed;
	pair->mr = ibv_reg_mr(pair->pd, pair->memory, 2 * 4096, IBV_ACCESS_LOCAL_WRITE);
	memset(&init, 0, sizeof(init));
	init.send_cq = init.recv_cq = pair->cq;
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = init.cap.max_recv_wr = depth;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	pair->qp = ibv_create_qp(pair->pd, &init);
	if (!pair->mr || !pair->qp || connect_to_self(pair, gid_index))
		goto failed;
	pair->send_sge.addr = (uintptr_t)pair->memory;
	pair->recv_sge.addr = (uintptr_t)pair->memory + 4096;
	pair->send_sge.length = pair->recv_sge.length = 64;
	pair->send_sge.lkey = pair->recv_sge.lkey = pair->mr->lkey;
	ibv_free_device_list(list);
	return pair;

failed:
	if (list)
		ibv_free_device_list(list);
	raw_close(pair);
	return NULL;
}

/*
 * Calls so often, and returns what one gave that was not 0. Eight times in a row: what a loop of one call takes is
 * decided by where it happens to lie in memory.
 */
#define IN_EIGHTS(calls, call)                                                                   \
	do {                                                                                     \
		int returned;                                                                    \
		uint64_t n;                                                                      \
                                                                                                 \
		for (n = (calls) / 8; n; n--)                                                    \
			if ((returned = (call)) || (returned = (call)) || (returned = (call)) || \
			    (returned = (call)) || (returned = (call)) || (returned = (call)) || \
			    (returned = (call)) || (returned = (call)))                          \
				return returned;                                                 \
		for (n = (calls) % 8; n; n--)                                                    \
			if ((returned = (call)))                                                 \
				return returned;                                                 \
		return 0;                                                                        \
	} while (0)

/* Asks for a notification so often; 0, or what a call returned. */
int raw_request(struct ibv_cq *cq, int solicited_only, uint64_t calls)
{
	IN_EIGHTS(calls, ibv_req_notify_cq(cq, solicited_only));
}

static inline int request_and_poll(struct ibv_cq *cq, int solicited_only)
{
	struct ibv_wc wc[POLL_AT_ONCE];
	int returned = ibv_req_notify_cq(cq, solicited_only);

	return returned ? returned : ibv_poll_cq(cq, POLL_AT_ONCE, wc);
}

/* The same with a poll after each, of a queue that is empty. */
int raw_request_and_poll(struct ibv_cq *cq, int solicited_only, uint64_t calls)
{
	IN_EIGHTS(calls, request_and_poll(cq, solicited_only));
}

/* As raw_loop, on such a pair. */
uint64_t raw_run(struct raw_pair *pair, uint64_t iterations, unsigned int batch)
{
	return raw_loop(pair->qp, pair->cq, &pair->send_sge, &pair->recv_sge, iterations, batch);
}
