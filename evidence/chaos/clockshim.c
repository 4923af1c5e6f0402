/*
 * Preload library: gives one process a wall clock that somebody else sets while it runs.
 *
 * The file named by CHAOS_CLOCK holds a struct control, which the test writes and the process reads:
 *
 *   wall = wall_base + (real - real_base) * (1 + ppm / 1e6)
 *
 * `version` is odd while the other fields are being written, so a reader never mixes two settings.
 * Only the wall clock is touched: expiry of keys goes by it. Monotonic clocks stay as they are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
    volatile int64_t version;
    volatile int64_t real_base;
    volatile int64_t wall_base;
    volatile int64_t ppm;
};

static struct control *control;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void attach(void)
{
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("CHAOS_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED)
        control = mapped;
    close(fd);
}

static int64_t wall_ns(void)
{
    struct timespec now;
    /* Other constructors may ask for the time before ours has run. */
    if (!real_clock_gettime)
        real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_clock_gettime(CLOCK_REALTIME, &now);
    int64_t real = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (!control)
        return real;
    for (;;) {
        int64_t version = control->version;
        __sync_synchronize();
        int64_t passed = real - control->real_base;
        int64_t wall = control->wall_base + passed + (int64_t)((double)passed * control->ppm / 1e6);
        __sync_synchronize();
        if (version % 2 == 0 && version == control->version)
            return wall;
    }
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) {
        if (!real_clock_gettime)
            real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
        return real_clock_gettime(id, out);
    }
    int64_t wall = wall_ns();
    out->tv_sec = wall / 1000000000;
    out->tv_nsec = wall % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    (void)zone;
    int64_t wall = wall_ns();
    out->tv_sec = wall / 1000000000;
    out->tv_usec = wall % 1000000000 / 1000;
    return 0;
}

time_t time(time_t *out)
{
    time_t seconds = wall_ns() / 1000000000;
    if (out)
        *out = seconds;
    return seconds;
}
