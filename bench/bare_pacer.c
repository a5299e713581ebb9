/* The ceiling for pacing: a loop in C that never sleeps and does nothing but send at Poisson instants and read responses.
 *
 * bare_pacer PORT RATE SECONDS: the lag of its sends, p50 and p99 in microseconds. What it has is the machine's own: the time
 * for which the host, or another process, had the core.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS 1024

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "bare_pacer PORT RATE SECONDS\n"), 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    double rate = atof(argv[2]), seconds = atof(argv[3]);
    char body[512], request[1024], response[4096];
    int size = snprintf(body, sizeof body, "{\"model\":\"null\",\"prompt\":\"%0256d\",\"max_tokens\":1}", 0);
    size = snprintf(request, sizeof request, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size, body);

    int poll = epoll_create1(0), idle[CONNECTIONS], idle_count = 0, one = 1;
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) return perror("connect"), 1;
        fcntl(fd, F_SETFL, O_NONBLOCK);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
        idle[idle_count++] = fd;
    }
    size_t most = (size_t)(rate * seconds * 2) + 1000, count = 0;
    int64_t *lags = malloc(most * sizeof *lags);
    if (!lags) return perror("malloc"), 1;
    srand48(1);
    int64_t start = now() + 10000000, end = start + (int64_t)(seconds * 1e9), due = start;
    while (due < end && count < most) {
        int64_t at = now();
        if (at >= due && idle_count) {
            lags[count++] = at - due;
            if (send(idle[--idle_count], request, (size_t)size, MSG_NOSIGNAL) != size) return perror("send"), 1;
            due += (int64_t)(-log(1 - drand48()) / rate * 1e9);
            continue;
        }
        struct epoll_event events[16];
        int ready = epoll_wait(poll, events, 16, 0);
        for (int i = 0; i < ready; i++) {
            ssize_t got = recv(events[i].data.fd, response, sizeof response, 0); /* the null server's response comes in one piece */
            if (got > 0) idle[idle_count++] = events[i].data.fd;
            else if (got == 0 || errno != EAGAIN) return fprintf(stderr, "the server closed\n"), 1;
        }
    }
    if (!count) return fprintf(stderr, "nothing was sent\n"), 1;
    qsort(lags, count, sizeof *lags, by_size);
    printf("%.1f %.1f\n", lags[count / 2] / 1e3, lags[count * 99 / 100] / 1e3);
    return 0;
}
