/* The null server of the benchmarks: responds to OpenAI-style requests as fast as one core can, so that it is never the limit.
 *
 *   null_server PORT ITL_US CHUNKS
 *
 * A body with "stream":true gets CHUNKS chunks, one every ITL_US microseconds on a common clock (0: all at once); any other
 * POST gets one small JSON response at once; a GET gets the list of models. Keep-alive and pipelining; nothing is checked. It polls
 * without pause and takes a whole core. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MAX_FD 65536
#define BUFFER 65536

struct connection {
    char *buffer;
    int used;
    int left; /* chunks still to be written; 0: no stream */
};

static struct connection connections[MAX_FD];
static int streams[MAX_FD], stream_count;
static int chunks = 100;
static long interval_us;

static char full[1024], models[1024], head[512], chunk[1024], tail[1024];
static int full_size, models_size, head_size, chunk_size, tail_size;

static int frame(char *to, const char *json) {
    int size = (int)strlen(json) + 8; /* "data: " and the blank line */
    return sprintf(to, "%x\r\ndata: %s\n\n\r\n", size, json);
}

static void prepare(void) {
    const char *body =
        "{\"id\":\"0\",\"object\":\"text_completion\",\"model\":\"null\",\"choices\":[{\"index\":0,\"text\":\" a\","
        "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}";
    full_size = sprintf(full, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    body = "{\"object\":\"list\",\"data\":[{\"id\":\"null\",\"object\":\"model\"}]}";
    models_size = sprintf(models, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    head_size = sprintf(head, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    chunk_size = frame(chunk,
                       "{\"id\":\"cmpl-0\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"null\",\"choices\":"
                       "[{\"index\":0,\"text\":\" hello\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}");
    tail_size = frame(tail,
                      "{\"id\":\"cmpl-0\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"null\",\"choices\":"
                      "[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":100}}");
    tail_size += frame(tail + tail_size, "[DONE]");
    tail_size += sprintf(tail + tail_size, "0\r\n\r\n");
}

static void put(int fd, const char *data, int size) {
    while (size > 0) {
        ssize_t count = send(fd, data, (size_t)size, MSG_NOSIGNAL);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (count <= 0) return;
        data += count;
        size -= (int)count;
    }
}

static void step(int fd) {
    struct connection *c = &connections[fd];
    put(fd, chunk, chunk_size);
    if (--c->left == 0) put(fd, tail, tail_size);
}

static void respond(int fd, int is_post, int is_stream) {
    if (!is_post) {
        put(fd, models, models_size);
    } else if (!is_stream) {
        put(fd, full, full_size);
    } else {
        put(fd, head, head_size);
        connections[fd].left = chunks;
        if (interval_us) streams[stream_count++] = fd;
        else
            while (connections[fd].left) step(fd);
    }
}

/* Takes the complete requests out of the buffer. */
static void parse(int fd) {
    struct connection *c = &connections[fd];
    for (;;) {
        char *end = memmem(c->buffer, (size_t)c->used, "\r\n\r\n", 4);
        if (!end) return;
        int head_length = (int)(end - c->buffer) + 4, body_length = 0;
        *end = 0;
        char *field = strcasestr(c->buffer, "\r\nContent-Length:");
        if (field) body_length = atoi(field + 17);
        *end = '\r';
        if (c->used < head_length + body_length) return;
        int is_stream = memmem(c->buffer + head_length, (size_t)body_length, "\"stream\":true", 13) != NULL;
        respond(fd, c->buffer[0] == 'P', is_stream);
        c->used -= head_length + body_length;
        memmove(c->buffer, c->buffer + head_length + body_length, (size_t)c->used);
    }
}

static void hang_up(int fd) {
    for (int i = 0; i < stream_count; i++)
        if (streams[i] == fd) streams[i--] = streams[--stream_count];
    connections[fd].left = connections[fd].used = 0;
    close(fd);
}

int main(int argc, char **argv) {
    int port = argc > 1 ? atoi(argv[1]) : 0, one = 1;
    interval_us = argc > 2 ? atol(argv[2]) : 0;
    chunks = argc > 3 ? atoi(argv[3]) : 100;
    prepare();
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 4096)) return perror("bind"), 1;
    getsockname(listener, (struct sockaddr *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);

    int poll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[512];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    if (interval_us) {
        struct timespec every = {interval_us / 1000000, interval_us % 1000000 * 1000};
        struct itimerspec spec = {every, every};
        timerfd_settime(timer, 0, &spec, NULL);
        event.data.fd = timer;
        epoll_ctl(poll, EPOLL_CTL_ADD, timer, &event);
    }
    for (;;) {
        int count = epoll_wait(poll, events, 512, 0); /* never asleep: waking a core would be charged to the client */
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == timer) {
                uint64_t ticks;
                if (read(timer, &ticks, sizeof ticks) < 0) continue;
                for (int s = 0; s < stream_count; s++) {
                    step(streams[s]);
                    if (!connections[streams[s]].left) streams[s--] = streams[--stream_count];
                }
            } else if (fd == listener) {
                int fresh = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (fresh < 0 || fresh >= MAX_FD) continue;
                setsockopt(fresh, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                if (!connections[fresh].buffer) connections[fresh].buffer = malloc(BUFFER + 1);
                connections[fresh].used = connections[fresh].left = 0;
                event.events = EPOLLIN;
                event.data.fd = fresh;
                epoll_ctl(poll, EPOLL_CTL_ADD, fresh, &event);
            } else {
                struct connection *c = &connections[fd];
                ssize_t size = recv(fd, c->buffer + c->used, (size_t)(BUFFER - c->used), 0);
                if (size < 0 && errno == EAGAIN) continue;
                if (size <= 0) {
                    hang_up(fd);
                    continue;
                }
                c->used += (int)size;
                parse(fd);
            }
        }
    }
}
