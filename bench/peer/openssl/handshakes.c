/* OpenSSL alone: TLS handshakes on plain sockets.

   handshakes serve PORT PEM              takes connections on 127.0.0.1, one after the other, until it is killed
   handshakes connect PORT THREADS SECONDS OWN   opens connections, and prints {"handshakes", "seconds"}

   A client ends each connection by an alert right after its handshake, and waits until the server has closed it: so the
   server has completed what is counted. It verifies nothing. OWN is the last byte of its address, 127.0.0.OWN. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 1024, TIMEOUT_SECONDS = 10 };

static void fail(const char *what) {
    fprintf(stderr, "handshakes: %s: ", what);
    perror("");
    ERR_print_errors_fp(stderr);
    _exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct sockaddr_in address_of(int last, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(0x7f000000u | (uint32_t)last);
    return address;
}

static void serve(int port, const char *pem) {
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_certificate_chain_file(context, pem) != 1) fail(pem);
    if (SSL_CTX_use_PrivateKey_file(context, pem, SSL_FILETYPE_PEM) != 1) fail(pem);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = address_of(1, port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, BACKLOG)) fail("listen");
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) fail("accept");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        SSL *session = SSL_new(context);
        SSL_set_fd(session, fd);
        char byte;
        if (SSL_accept(session) == 1) {
            SSL_read(session, &byte, 1);
            SSL_shutdown(session);
        }
        SSL_free(session);
        close(fd);
        ERR_clear_error();
    }
}

struct client {
    pthread_t thread;
    SSL_CTX *context;
    int port, own;
    double until;
    long count;
};

static void *connect_again(void *argument) {
    struct client *c = argument;
    struct sockaddr_in from = address_of(c->own, 0), to = address_of(1, c->port);
    struct timeval limit = {.tv_sec = TIMEOUT_SECONDS};
    int one = 1;
    do {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&from, sizeof from)) fail("bind");
        if (connect(fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
        SSL *session = SSL_new(c->context);
        SSL_set_fd(session, fd);
        if (SSL_connect(session) != 1) fail("handshake");
        SSL_shutdown(session);
        char rest[4096];
        while (recv(fd, rest, sizeof rest, 0) > 0) continue; /* tickets, then the end */
        SSL_free(session);
        close(fd);
        c->count++;
    } while (now() < c->until);
    return NULL;
}

static void connect_all(int port, int threads, double seconds, int own) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    struct client *clients = calloc((size_t)threads, sizeof *clients);
    if (!clients) fail("memory");
    double began = now();
    for (int i = 0; i < threads; i++) {
        clients[i] = (struct client){.context = context, .port = port, .own = own, .until = began + seconds};
        if (pthread_create(&clients[i].thread, NULL, connect_again, &clients[i])) fail("thread");
    }
    long count = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(clients[i].thread, NULL);
        count += clients[i].count;
    }
    printf("{\"handshakes\": %ld, \"seconds\": %.6f}\n", count, now() - began);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc == 4 && !strcmp(argv[1], "serve"))
        serve(atoi(argv[2]), argv[3]);
    else if (argc == 6 && !strcmp(argv[1], "connect"))
        connect_all(atoi(argv[2]), atoi(argv[3]), atof(argv[4]), atoi(argv[5]));
    else
        return 2;
    return 0;
}
