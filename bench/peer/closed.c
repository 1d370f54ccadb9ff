/* Closed loop: -g connections, one request in flight on each, raw sockets. Connection i sends frame i (modulo) of the
   file given by -f (requests with their lengths before them, one after the other) to address i (modulo) of -b, a list
   with commas: one address for all frames, or that of each frame's leader. The two bytes at -s of each answer are an
   error code. -t is not used. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_MAX = 4096, FRAMES_MAX = 4096, ADDRESS_MAX = 64, EVENTS = 256, STALL_MS = 10000, SAMPLES_PER_SECOND = 1000000 };

struct frame {
    const char *bytes;
    size_t length;
};

struct connection {
    int fd;
    struct frame frame;
    int64_t sent;
    size_t have;
    unsigned char answer[ANSWER_MAX];
};

static size_t frames_of(const char *path, struct frame *frames) {
    FILE *file = fopen(path, "r");
    if (!file) fail("%s: %s", path, strerror(errno));
    size_t count = 0;
    uint32_t prefix;
    while (count < FRAMES_MAX && fread(&prefix, sizeof prefix, 1, file) == 1) {
        size_t length = ntohl(prefix);
        char *bytes = malloc(length + sizeof prefix);
        if (!bytes) fail("no memory");
        memcpy(bytes, &prefix, sizeof prefix);
        if (fread(bytes + sizeof prefix, 1, length, file) != length) fail("%s is cut short", path);
        frames[count++] = (struct frame){bytes, length + sizeof prefix};
    }
    fclose(file);
    if (!count) fail("%s is empty", path);
    return count;
}

/* Copies the address of a number (modulo) out of a list with commas. */
static void address_of(const char *list, size_t number, char *address) {
    size_t count = 1;
    for (const char *c = list; *c; c++) count += *c == ',';
    for (number %= count; number; number--) list = strchr(list, ',') + 1;
    size_t length = strcspn(list, ",");
    if (length >= ADDRESS_MAX) fail("-b: an address of %zu bytes", length);
    memcpy(address, list, length);
    address[length] = 0;
}

static int connected(const char *address) {
    char host[ADDRESS_MAX];
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= sizeof host) fail("-b %s", address);
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = 0;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) fail("-b %s: not an address", address);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) fail("connect: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void ask(struct connection *c) {
    c->sent = now_ns();
    c->have = 0;
    if (send(c->fd, c->frame.bytes, c->frame.length, MSG_NOSIGNAL) != (ssize_t)c->frame.length)
        fail("send: %s", strerror(errno));
}

/* True when the answer is whole. */
static int receive_reply(struct connection *c, size_t error_at) {
    ssize_t got = recv(c->fd, c->answer + c->have, sizeof c->answer - c->have, 0);
    if (got <= 0) fail("the broker closed a connection");
    c->have += (size_t)got;
    uint32_t prefix;
    if (c->have < sizeof prefix) return 0;
    memcpy(&prefix, c->answer, sizeof prefix);
    size_t whole = ntohl(prefix) + sizeof prefix;
    if (whole > sizeof c->answer) fail("an answer of %zu bytes", whole);
    if (c->have < whole) return 0;
    if (error_at + 2 > whole) fail("an answer of only %zu bytes", whole);
    int code = (int16_t)(c->answer[error_at] << 8 | c->answer[error_at + 1]);
    if (code) fail("the broker answered error %d", code);
    return 1;
}

/* Sends requests and receives replies until the time; counts the replies, and keeps their times if `seen`. */
static long turn(int poller, size_t error_at, int64_t until, struct latencies *seen) {
    struct epoll_event events[EVENTS];
    long answers = 0;
    int64_t now = now_ns();
    while (now < until) {
        int ready = epoll_wait(poller, events, EVENTS, STALL_MS);
        if (!ready) fail("no answer within %d ms", STALL_MS);
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (!receive_reply(c, error_at)) continue;
            now = now_ns();
            answers++;
            if (seen) latencies_add(seen, now - c->sent);
            ask(c);
        }
        now = now_ns();
    }
    return answers;
}

void run_closed(const struct options *o) {
    static struct frame frames[FRAMES_MAX];
    size_t count = frames_of(o->payload_file ? o->payload_file : "/dev/null", frames);
    struct connection *connections = calloc((size_t)o->groups, sizeof *connections);
    int poller = epoll_create1(0);
    for (int i = 0; i < o->groups; i++) {
        struct connection *c = &connections[i];
        char address[ADDRESS_MAX];
        address_of(o->brokers, (size_t)i, address);
        c->fd = connected(address);
        c->frame = frames[(size_t)i % count];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
        ask(c);
    }
    turn(poller, (size_t)o->size, now_ns() + (int64_t)(o->warm * 1e9), NULL);
    struct latencies seen;
    latencies_room(&seen, (size_t)(o->time * SAMPLES_PER_SECOND));

    mark("start");
    int64_t began = now_ns();
    double cpu = cpu_seconds();
    long answers = turn(poller, (size_t)o->size, began + (int64_t)(o->time * 1e9), &seen);
    double seconds = (double)(now_ns() - began) / 1e9;
    cpu = cpu_seconds() - cpu;
    mark("end {\"requests\": %ld, \"seconds\": %.6f, \"client_cpu\": %.3f, %s}", answers, seconds, cpu,
         latencies_json(&seen));
}
