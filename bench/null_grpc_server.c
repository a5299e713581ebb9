/* The null gRPC server of the benchmarks: responds to every call with the same small message, as fast as one core can.
 *
 *   null_grpc_server PORT ANSWER_BYTES
 *
 * It knows just enough of HTTP/2: frames, settings, pings and the connection's window. It does not decode headers, so any
 * unary method of any service will do. It polls without pause and takes a whole core. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_FD 65536
#define BUFFER (1 << 20)
#define OUT (1 << 18)
#define TOP_UP (1 << 20)

enum { DATA = 0, HEADERS = 1, SETTINGS = 4, PING = 6, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };

struct connection {
    unsigned char *buffer;
    int used;
    int greeted;
    uint32_t consumed;
};

static struct connection connections[MAX_FD];
static unsigned char response[BUFFER], out[OUT + BUFFER];
static int response_size, data_at, trailers_at, out_size;

static void be32(unsigned char *to, uint32_t value) {
    value = htonl(value);
    memcpy(to, &value, 4);
}

static int frame(unsigned char *to, int type, int flags, uint32_t stream, const void *payload, int size) {
    to[0] = (unsigned char)(size >> 16), to[1] = (unsigned char)(size >> 8), to[2] = (unsigned char)size;
    to[3] = (unsigned char)type, to[4] = (unsigned char)flags;
    be32(to + 5, stream);
    if (size) memcpy(to + 9, payload, (size_t)size);
    return 9 + size;
}

/* Headers, one message and trailers of a stream; the stream's id is filled in later. */
static void prepare(int message_size) {
    static const char headers[] = "\x88\x0f\x10\x10" "application/grpc";
    static const char trailers[] = "\x00\x0bgrpc-status\x01" "0";
    unsigned char *message = calloc(1, (size_t)message_size + 5);
    be32(message + 1, (uint32_t)message_size);
    if (message_size >= 2) message[5] = 0x2a, message[6] = (unsigned char)(message_size - 2); /* ModelInferResponse.raw-ish: field 5 */
    response_size = frame(response, HEADERS, END_HEADERS, 0, headers, sizeof headers - 1);
    data_at = response_size;
    response_size += frame(response + response_size, DATA, 0, 0, message, message_size + 5);
    trailers_at = response_size;
    response_size += frame(response + response_size, HEADERS, END_HEADERS | END_STREAM, 0, trailers, sizeof trailers - 1);
    free(message);
}

static void flush(int fd) {
    unsigned char *data = out;
    while (out_size > 0) {
        ssize_t count = send(fd, data, (size_t)out_size, MSG_NOSIGNAL);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (count <= 0) break;
        data += count;
        out_size -= (int)count;
    }
    out_size = 0;
}

static void reply(int fd, uint32_t stream) {
    be32(response + 5, stream), be32(response + data_at + 5, stream), be32(response + trailers_at + 5, stream);
    memcpy(out + out_size, response, (size_t)response_size);
    out_size += response_size;
    if (out_size > OUT) flush(fd);
}

static void handle(int fd, struct connection *c, int type, int flags, uint32_t stream, const unsigned char *payload, int size) {
    unsigned char increment[4];
    if (type == DATA) {
        c->consumed += (uint32_t)size;
        if (c->consumed >= TOP_UP) {
            be32(increment, c->consumed);
            out_size += frame(out + out_size, WINDOW_UPDATE, 0, 0, increment, 4);
            c->consumed = 0;
        }
    }
    if ((type == DATA || type == HEADERS) && flags & END_STREAM) reply(fd, stream);
    if (type == SETTINGS && !(flags & ACK)) out_size += frame(out + out_size, SETTINGS, ACK, 0, NULL, 0);
    if (type == PING && !(flags & ACK)) out_size += frame(out + out_size, PING, ACK, 0, payload, 8);
}

/* Takes the complete frames out of the buffer. */
static void parse(int fd) {
    struct connection *c = &connections[fd];
    int at = 0;
    if (!c->greeted) {
        if (c->used < 24) return;
        static const unsigned char windows[] = {0, 4, 0x7f, 0xff, 0xff, 0xff, 0, 3, 0x7f, 0xff, 0xff, 0xff};
        unsigned char increment[4];
        out_size += frame(out + out_size, SETTINGS, 0, 0, windows, sizeof windows);
        be32(increment, 0x7fffffff - 65535);
        out_size += frame(out + out_size, WINDOW_UPDATE, 0, 0, increment, 4);
        c->greeted = 1;
        at = 24;
    }
    while (c->used - at >= 9) {
        const unsigned char *f = c->buffer + at;
        int size = f[0] << 16 | f[1] << 8 | f[2];
        if (c->used - at < 9 + size) break;
        uint32_t stream;
        memcpy(&stream, f + 5, 4);
        handle(fd, c, f[3], f[4], ntohl(stream) & 0x7fffffff, f + 9, size);
        at += 9 + size;
    }
    c->used -= at;
    memmove(c->buffer, c->buffer + at, (size_t)c->used);
    if (out_size) flush(fd);
}

int main(int argc, char **argv) {
    int port = argc > 1 ? atoi(argv[1]) : 0, one = 1;
    prepare(argc > 2 ? atoi(argv[2]) : 64);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 4096)) return perror("bind"), 1;
    getsockname(listener, (struct sockaddr *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int poll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[512];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(poll, events, 512, 0); /* never asleep: waking a core would be charged to the client */
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            struct connection *c = &connections[fd];
            if (fd == listener) {
                int fresh = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (fresh < 0 || fresh >= MAX_FD) continue;
                setsockopt(fresh, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                if (!connections[fresh].buffer) connections[fresh].buffer = malloc(BUFFER);
                connections[fresh].used = connections[fresh].greeted = 0;
                connections[fresh].consumed = 0;
                event.data.fd = fresh;
                epoll_ctl(poll, EPOLL_CTL_ADD, fresh, &event);
                continue;
            }
            ssize_t size = recv(fd, c->buffer + c->used, (size_t)(BUFFER - c->used), 0);
            if (size < 0 && errno == EAGAIN) continue;
            if (size <= 0) {
                close(fd);
                continue;
            }
            c->used += (int)size;
            parse(fd);
        }
    }
}
