/* Median time of a synchronous GET of 100 bytes over Valkey's RDMA module, beside which speed.sh puts
 * ours. The client is the one that Valkey tests the module with: this file is compiled behind it,
 *   gcc -O2 -Dmain=test_main -include VALKEY/tests/rdma/rdma-test.c valkey_get.c -lrdmacm -libverbs
 * Usage: valkey_get HOST PORT GETS */
#undef main

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void ask(RdmaContext *ctx, char *request, char *answer, size_t answer_bytes) {
    valkeyRdmaWrite(ctx, request, strlen(request));
    valkeyRdmaReadFull(ctx, answer, answer_bytes);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int gets = atoi(argv[3]);
    double *us = calloc(gets, sizeof(*us));
    RdmaContext *ctx = valkeyContextConnectRdma(argv[1], atoi(argv[2]), 5000);
    if (!ctx || !us) return 1;
    char request[256], answer[256];
    /* "+OK\r\n"; then "$100\r\n", the value, "\r\n". */
    sprintf(request, "*3\r\n$3\r\nSET\r\n$16\r\nbench-0000000001\r\n$100\r\n%0100d\r\n", 7);
    ask(ctx, request, answer, 5);
    sprintf(request, "*2\r\n$3\r\nGET\r\n$16\r\nbench-0000000001\r\n");
    for (int i = 0; i < gets; i++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        ask(ctx, request, answer, 108);
        clock_gettime(CLOCK_MONOTONIC, &to);
        us[i] = (to.tv_sec - from.tv_sec) * 1e6 + (to.tv_nsec - from.tv_nsec) / 1e3;
        if (memcmp(answer, "$100\r\n0000", 10) != 0) return 1;
    }
    qsort(us, gets, sizeof(*us), by_size);
    printf("%.1f\n", us[gets / 2]);
    return 0;
}
