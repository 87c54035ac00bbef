/* Median time of WRITE and compare-and-swap behind one doorbell, and of fetch-and-add, by nothing but
 * verbs: beside these update.sh puts an update of an entry, and an addition to a counter. Two queue pairs
 * of this process are connected with each other; the second one only answers.
 *   gcc -O2 write_cas.c -libverbs
 * Usage: write_cas DEVICE BYTES TIMES; prints both medians, in us */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROOM (1 << 20)
enum { RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                IBV_ACCESS_REMOTE_ATOMIC };

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* The first GID that stands for an IPv4 address. */
static int gid_of(struct ibv_context *device, union ibv_gid *gid) {
    static const uint8_t v4[12] = {[10] = 0xff, [11] = 0xff};
    for (int i = 0; i < 32; i++)
        if (!ibv_query_gid(device, 1, i, gid) && !memcmp(gid->raw, v4, sizeof(v4))) return i;
    fprintf(stderr, "no GID with an IPv4 address\n");
    exit(1);
}

static void connect_to(struct ibv_qp *qp, uint32_t number, union ibv_gid gid, int gid_index) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS};
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = number,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1,
                    .grh = {.dgid = gid, .sgid_index = gid_index, .hop_limit = 1}}};
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
                               .rnr_retry = 7, .max_rd_atomic = 1};
    if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                     IBV_QP_ACCESS_FLAGS)) die("INIT");
    if (ibv_modify_qp(qp, &receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                        IBV_QP_MIN_RNR_TIMER)) die("RTR");
    if (ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
        die("RTS");
}

static struct ibv_qp *make(struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    if (!qp) die("a queue pair");
    return qp;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Posts the chain that begins at `first`, whose last request is signaled, and waits for it; median. */
static double median(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_send_wr *first, int times) {
    double *us = calloc(times, sizeof(*us));
    if (!us) die("memory");
    for (int i = 0; i < times; i++) {
        struct timespec from, to;
        struct ibv_send_wr *bad;
        struct ibv_wc wc;
        int n;
        clock_gettime(CLOCK_MONOTONIC, &from);
        if (ibv_post_send(qp, first, &bad)) die("posting");
        while ((n = ibv_poll_cq(cq, 1, &wc)) == 0) {}
        clock_gettime(CLOCK_MONOTONIC, &to);
        if (n < 0 || wc.status) {
            fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
            exit(1);
        }
        us[i] = (to.tv_sec - from.tv_sec) * 1e6 + (to.tv_nsec - from.tv_nsec) / 1e3;
    }
    qsort(us, times, sizeof(*us), by_size);
    return us[times / 2];
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    uint32_t bytes = atoi(argv[2]);
    int times = atoi(argv[3]), count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    struct ibv_context *device = NULL;
    for (int i = 0; i < count; i++)
        if (!strcmp(ibv_get_device_name(devices[i]), argv[1])) device = ibv_open_device(devices[i]);
    if (!device) die(argv[1]);
    struct ibv_pd *pd = ibv_alloc_pd(device);
    struct ibv_cq *cq = ibv_create_cq(device, 64, NULL, NULL, 0);
    char *ours = aligned_alloc(4096, ROOM), *theirs = aligned_alloc(4096, ROOM);
    if (!pd || !cq || !ours || !theirs || bytes > ROOM - 4096 || times < 1) die("resources");
    memset(ours, 1, ROOM);
    memset(theirs, 0, ROOM);
    struct ibv_mr *own = ibv_reg_mr(pd, ours, ROOM, RIGHTS), *mr = ibv_reg_mr(pd, theirs, ROOM, RIGHTS);
    if (!own || !mr) die("memory regions");
    union ibv_gid gid;
    int gid_index = gid_of(device, &gid);
    struct ibv_qp *qp = make(pd, cq), *peer = make(pd, cq);
    connect_to(qp, peer->qp_num, gid, gid_index);
    connect_to(peer, qp->qp_num, gid, gid_index);
    struct ibv_sge value = {.addr = (uintptr_t)ours + 64, .length = bytes, .lkey = own->lkey};
    struct ibv_sge old = {.addr = (uintptr_t)ours, .length = 8, .lkey = own->lkey};
    /* Swaps 0 for 0: it finds what it expects every time. */
    struct ibv_send_wr cas = {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .sg_list = &old, .num_sge = 1,
        .send_flags = IBV_SEND_SIGNALED, .wr.atomic = {.remote_addr = (uintptr_t)theirs,
        .compare_add = 0, .swap = 0, .rkey = mr->rkey}};
    struct ibv_send_wr write = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &value, .num_sge = 1,
        .wr.rdma = {.remote_addr = (uintptr_t)theirs + 4096, .rkey = mr->rkey}, .next = &cas};
    struct ibv_send_wr add = {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &old, .num_sge = 1,
        .send_flags = IBV_SEND_SIGNALED, .wr.atomic = {.remote_addr = (uintptr_t)theirs + 8,
        .compare_add = 1, .rkey = mr->rkey}};
    median(qp, cq, &write, 500);
    printf("%.2f ", median(qp, cq, &write, times));
    median(qp, cq, &add, 500);
    printf("%.2f\n", median(qp, cq, &add, times));
    return 0;
}
