/* Counts, logs and fails what a process does to files below one folder. For tests; built by shim.py, loaded by LD_PRELOAD.

   FAULTS_FOLDER  the folder, without links in its path; without it nothing is watched
   FAULTS_LOG     a file that gets a record of each event (struct record, two names, the bytes written), in their order
   FAULTS_STATE   a file of zeros (struct state) that all processes share: the rule is counted over all of them
   FAULTS_RULE    KIND:PATTERN:COUNT:ACTION, as in "rename:run/best.keras:2:ENOSPC": the fault of the COUNT-th event of a kind
                  (* for any) at a name below the folder that fnmatch finds (of a rename: the new name; * alone: any)

   FAULTS_CLOCK   SECONDS:JUMP, as in "1.5:-86400": so long after the process began, the clock on the wall jumps by so many
                  seconds for it

   ACTION is `kill` (a write is cut in half first), or an error. A full disk (ENOSPC, EDQUOT) stays full: every later write,
   and whatever makes a name, fails alike. Children inherit all of it.

   stdio calls the system within libc, where nothing can come between: its streams are made unbuffered and its own functions
   are watched. What is written through a memory map is not seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#undef open64
#undef fopen64
#undef fwrite_unlocked
#define REAL(name) ({ static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })
enum { OUR_DESCRIPTORS = 900, NAME = 2 * PATH_MAX };

struct state { atomic_long seen, matched; atomic_int struck, error; };
struct record { char kind[12]; int32_t error; int64_t offset, size; uint32_t name, other, pid, bytes; };

static struct { char folder[PATH_MAX], kind[16], pattern[PATH_MAX]; long count; int kills, error, on; } rule;
static struct state *state, nobody;
static int log_file = -1;
static pid_t owner;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static const struct { const char *name; int number; } ERRORS[] = {
    {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EIO", EIO}, {"EROFS", EROFS}, {"EACCES", EACCES}};

static struct { double after; long jump; struct timespec begun; } wall;

static int opened_high(const char *path, int flags) {
    int low = syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0666), high;
    if (low < 0) return -1;
    high = fcntl(low, F_DUPFD_CLOEXEC, OUR_DESCRIPTORS);
    syscall(SYS_close, low);
    return high;
}

static void read_rule(const char *text) {
    char action[16] = "";
    rule.count = rule.kills = rule.error = 0;
    if (!text || sscanf(text, "%15[^:]:%4095[^:]:%ld:%15s", rule.kind, rule.pattern, &rule.count, action) != 4) return;
    rule.kills = !strcmp(action, "kill");
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (!strcmp(action, ERRORS[i].name)) rule.error = ERRORS[i].number;
}

/* Reads the environment again: a process that was started earlier, or forked, calls it. */
__attribute__((constructor)) void faults_begin(void) {
    const char *folder = getenv("FAULTS_FOLDER"), *log = getenv("FAULTS_LOG"), *shared = getenv("FAULTS_STATE");
    rule.on = 0;
    owner = getpid();
    if (log_file >= 0) syscall(SYS_close, log_file);
    log_file = log ? opened_high(log, O_WRONLY | O_APPEND | O_CREAT) : -1;
    state = &nobody;
    if (shared) {
        int file = opened_high(shared, O_RDWR);
        void *map = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (map != MAP_FAILED) state = map;
        syscall(SYS_close, file);
    }
    read_rule(getenv("FAULTS_RULE"));
    wall.jump = 0;
    if (getenv("FAULTS_CLOCK")) sscanf(getenv("FAULTS_CLOCK"), "%lf:%ld", &wall.after, &wall.jump);
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &wall.begun);
    if (!folder || strlen(folder) >= sizeof rule.folder) return;
    strcpy(rule.folder, folder);
    rule.on = 1;
}

static void after_fork(void) { /* a lock of a file is shared by all who hold one description of it */
    int was = errno;
    pthread_mutex_init(&mutex, NULL);
    if (rule.on) faults_begin();
    errno = was;
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

/* The part of `path` below the folder; NULL for what lies elsewhere, or has no name any more. */
static const char *below(const char *path) {
    size_t length = strlen(rule.folder), end = strlen(path);
    if (strncmp(path, rule.folder, length) || path[length] != '/') return NULL;
    return end > 10 && !strcmp(path + end - 10, " (deleted)") ? NULL : path + length + 1;
}

/* A child of vfork shares this memory, but not its descriptors. */
static int ours(void) { return rule.on && getpid() == owner; }

static const char *name_of(int file, char *path) {
    char link[64];
    int was = errno;
    ssize_t length = -1;
    if (ours() && file >= 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        length = syscall(SYS_readlinkat, AT_FDCWD, link, path, NAME - 1);
    }
    errno = was;
    if (length < 0) return NULL;
    path[length] = 0;
    return strcmp(path, rule.folder) ? below(path) : ".";
}

static const char *name_at(int folder, const char *name, char *path) {
    char link[64];
    int was = errno;
    ssize_t length = 0;
    if (!ours() || !name) return NULL;
    if (*name != '/') {
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
        if (length >= 0) path[length++] = '/';
    }
    errno = was;
    if (length < 0) return NULL;
    snprintf(path + length, NAME - length, "%s", name);
    return below(path);
}

static int matches(const char *name) { return !strcmp(rule.pattern, "*") || !fnmatch(rule.pattern, name, FNM_PATHNAME); }

/* The fault of this event: 0 for none, an error, or -1 for the end of the process. */
static int fault_of(const char *kind, const char *name, int grows) {
    atomic_fetch_add(&state->seen, 1);
    if (rule.count && (*rule.kind == '*' || !strcmp(rule.kind, kind)) && matches(name) &&
        atomic_fetch_add(&state->matched, 1) + 1 == rule.count) {
        atomic_store(&state->struck, 1);
        if (rule.error == ENOSPC || rule.error == EDQUOT) atomic_store(&state->error, rule.error);
        return rule.kills ? -1 : rule.error;
    }
    return grows ? atomic_load(&state->error) : 0;
}

static _Noreturn void end(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static void put(struct iovec *parts, int count) {
    syscall(SYS_writev, log_file, parts, count);
}

static void logged(const char *kind, const char *name, const char *other, int64_t offset, int64_t size, const void *data,
                   int error) {
    struct record record = {.error = error, .offset = offset, .size = size, .name = strlen(name), .pid = getpid(),
                            .other = other ? strlen(other) : 0, .bytes = data && size > 0 ? size : 0};
    int was = errno;
    if (log_file < 0) return;
    snprintf(record.kind, sizeof record.kind, "%s", kind);
    put((struct iovec[]){{&record, sizeof record}, {(void *)name, record.name}, {(void *)other, record.other},
                         {(void *)data, record.bytes}}, 4);
    errno = was;
}

/* The order in the log is that of the events: one at a time, over all processes. */
static void lock(void) { pthread_mutex_lock(&mutex); if (log_file >= 0) flock(log_file, LOCK_EX); }
static void unlock(void) {
    int was = errno;
    if (log_file >= 0) flock(log_file, LOCK_UN);
    pthread_mutex_unlock(&mutex);
    errno = was;
}

/* The event `call` at `name`: fails it, ends the process, or makes it and logs it. */
#define EVENT(type, failed, kind, name, other, grows, call) ({                                     \
    type result = failed;                                                                          \
    lock();                                                                                        \
    int error = fault_of(kind, name, grows);                                                        \
    if (error < 0) { logged(kind, name, other, 0, 0, NULL, -1); end(); }                           \
    if (!error) { result = (call); error = result == failed ? errno : 0; }                         \
    logged(kind, name, other, 0, 0, NULL, error);                                                  \
    unlock();                                                                                      \
    if (error) errno = error;                                                                      \
    result; })

/* --- contents --- */

static size_t total(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

/* The body of a function that writes: `whole` is the call as it was made; `part` moves at most `most` bytes, where `at` is the offset, or
   -1 for where the file stands. The file itself says what arrived. */
#define WRITES(file, whole, at, size, part) {                                                       \
    char path[NAME];                                                                                \
    const char *name = name_of(file, path);                                                         \
    if (!name) return whole;                                                                        \
    ssize_t moved = -1;                                                                             \
    lock();                                                                                         \
    int error = fault_of("write", name, 1);                                                          \
    if (error <= 0) { size_t most = error ? (size) / 2 : (size); moved = most || !error ? (part) : 0; \
                      log_written(file, name, at, moved, error); }                                  \
    else logged("write", name, NULL, 0, 0, NULL, error);                                            \
    if (error < 0) end();                                                                           \
    unlock();                                                                                       \
    if (error) errno = error;                                                                       \
    return moved; }

static void log_written(int file, const char *name, int64_t at, ssize_t moved, int error) {
    int was = errno;
    char path[64], *data = moved > 0 ? malloc(moved) : NULL;
    int64_t offset = at >= 0 ? at : lseek(file, 0, SEEK_CUR) - (moved > 0 ? moved : 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file); /* the descriptor may be for writing alone */
    int reading = data ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (reading >= 0 && syscall(SYS_pread64, reading, data, moved, offset) == moved)
        logged("write", name, NULL, offset, moved, data, error);
    else logged("write", name, NULL, offset, moved, NULL, error ? error : moved < 0 ? was : 0);
    if (reading >= 0) syscall(SYS_close, reading);
    free(data);
    errno = was;
}

ssize_t write(int file, const void *data, size_t size)
    WRITES(file, REAL(write)(file, data, size), -1, size, REAL(write)(file, data, most))

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset)
    WRITES(file, REAL(pwrite64)(file, data, size, offset), offset, size, REAL(pwrite64)(file, data, most, offset))
ssize_t pwrite(int file, const void *data, size_t size, off_t offset) { return pwrite64(file, data, size, offset); }

ssize_t writev(int file, const struct iovec *parts, int count)
    WRITES(file, REAL(writev)(file, parts, count), -1, total(parts, count),
           most == total(parts, count) ? REAL(writev)(file, parts, count) : 0)

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off64_t offset, int flags)
    WRITES(file, REAL(pwritev64v2)(file, parts, count, offset, flags), offset, total(parts, count),
           most == total(parts, count) ? REAL(pwritev64v2)(file, parts, count, offset, flags) : 0)
ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t at, int flags) { return pwritev64v2(file, parts, count, at, flags); }
ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t at) { return pwritev64v2(file, parts, count, at, 0); }
ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) { return pwritev64v2(file, parts, count, at, 0); }

ssize_t sendfile64(int file, int from, off64_t *offset, size_t size)
    WRITES(file, REAL(sendfile64)(file, from, offset, size), -1, size, REAL(sendfile64)(file, from, offset, most))
ssize_t sendfile(int file, int from, off_t *offset, size_t size) { return sendfile64(file, from, offset, size); }

static ssize_t copied(int from, off64_t *in, int file, off64_t *out, off64_t start, size_t size, unsigned flags)
    WRITES(file, REAL(copy_file_range)(from, in, file, out, size, flags), start, size,
           REAL(copy_file_range)(from, in, file, out, most, flags))
ssize_t copy_file_range(int from, off64_t *in, int file, off64_t *out, size_t size, unsigned flags) {
    return copied(from, in, file, out, out ? *out : -1, size, flags); /* the call moves *out */
}

int ftruncate64(int file, off64_t size) {
    char path[NAME];
    const char *name = name_of(file, path);
    if (!name) return REAL(ftruncate64)(file, size);
    lock();
    int error = fault_of("truncate", name, 0), result = -1;
    if (error < 0) end();
    if (!error && (result = REAL(ftruncate64)(file, size))) error = errno;
    logged("truncate", name, NULL, 0, size, NULL, error);
    unlock();
    if (error) errno = error;
    return result;
}
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int truncate64(const char *path, off64_t size) { /* Python's os.truncate(path) */
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return -1;
    int result = ftruncate64(file, size), was = errno;
    syscall(SYS_close, file);
    errno = was;
    return result;
}
int truncate(const char *path, off_t size) { return truncate64(path, size); }

#define SYNCS(real) {                                                                                \
    char path[NAME];                                                                                \
    const char *name = name_of(file, path);                                                         \
    return name ? EVENT(int, -1, "fsync", name, NULL, 0, REAL(real)(file)) : REAL(real)(file); }
int fsync(int file) SYNCS(fsync)
int fdatasync(int file) SYNCS(fdatasync)

/* --- names --- */

static int opened(int folder, const char *path, int flags, mode_t mode) {
    char buffer[NAME];
    struct stat about;
    const char *name = name_at(folder, path, buffer);
    if (!name || ((flags & O_ACCMODE) == O_RDONLY && !(flags & O_CREAT)) || (flags & O_DIRECTORY))
        return REAL(openat64)(folder, path, flags, mode);
    int was = errno, missing = fstatat(folder, path, &about, 0);
    errno = was;
    const char *kind = missing && flags & O_CREAT ? "create" : flags & O_TRUNC ? "empty" : "open";
    return EVENT(int, -1, kind, name, NULL, missing, REAL(openat64)(folder, path, flags, mode));
}

#define MODE(flags) ({ mode_t given = 0; va_list more; if ((flags) & (O_CREAT | __O_TMPFILE)) { va_start(more, flags); \
                       given = va_arg(more, mode_t); va_end(more); } given; })
int open64(const char *path, int flags, ...) { return opened(AT_FDCWD, path, flags, MODE(flags)); }
int open(const char *path, int flags, ...) { return opened(AT_FDCWD, path, flags, MODE(flags)); }
int openat64(int folder, const char *path, int flags, ...) { return opened(folder, path, flags, MODE(flags)); }
int openat(int folder, const char *path, int flags, ...) { return opened(folder, path, flags, MODE(flags)); }
int creat64(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat(const char *path, mode_t mode) { return creat64(path, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char *path, int flags) { return opened(folder, path, flags, 0); }
int __openat64_2(int folder, const char *path, int flags) { return opened(folder, path, flags, 0); }

/* The body of a function that closes `file`. The descriptor is gone, whatever close says. */
#define CLOSES(file, failed, call) {                                                                \
    char path[NAME];                                                                                \
    int number = file, was = errno;                                                                 \
    const char *name = name_of(number, path);                                                       \
    if (name && (fcntl(number, F_GETFL) & O_ACCMODE) == O_RDONLY) name = NULL;                      \
    errno = was;                                                                                    \
    if (!name) return call;                                                                         \
    lock();                                                                                         \
    int error = fault_of("close", name, 0), result;                                                  \
    if (error < 0) end();                                                                           \
    result = call;                                                                                  \
    logged("close", name, NULL, 0, 0, NULL, error);                                                 \
    unlock();                                                                                       \
    if (error) errno = error;                                                                       \
    return error ? failed : result; }
int close(int file) CLOSES(file, -1, REAL(close)(file))
int fclose(FILE *stream) CLOSES(fileno(stream), EOF, REAL(fclose)(stream))

static int renamed(int from, const char *old, int to, const char *new, unsigned flags) {
    char first[NAME], second[NAME];
    const char *source = name_at(from, old, first), *name = name_at(to, new, second);
    if (!name) return REAL(renameat2)(from, old, to, new, flags);
    return EVENT(int, -1, "rename", name, source, 0, REAL(renameat2)(from, old, to, new, flags));
}
int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return renamed(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) { return renamed(from, old, to, new, flags); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char first[NAME], second[NAME];
    const char *source = name_at(from, old, first), *name = name_at(to, new, second);
    if (!name) return REAL(linkat)(from, old, to, new, flags);
    return EVENT(int, -1, "link", name, source, 1, REAL(linkat)(from, old, to, new, flags));
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

static int removed(const char *kind, int folder, const char *path, int flags) {
    char buffer[NAME];
    const char *name = name_at(folder, path, buffer);
    if (!name) return REAL(unlinkat)(folder, path, flags);
    return EVENT(int, -1, kind, name, NULL, 0, REAL(unlinkat)(folder, path, flags));
}
int unlinkat(int folder, const char *path, int flags) { return removed(flags & AT_REMOVEDIR ? "rmdir" : "unlink", folder, path, flags); }
int unlink(const char *path) { return removed("unlink", AT_FDCWD, path, 0); }
int rmdir(const char *path) { return removed("rmdir", AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
    char buffer[NAME];
    const char *name = name_at(folder, path, buffer);
    if (!name) return REAL(mkdirat)(folder, path, mode);
    return EVENT(int, -1, "mkdir", name, NULL, 1, REAL(mkdirat)(folder, path, mode));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* --- stdio: TensorFlow's files, and the streams of C++ --- */

FILE *fopen64(const char *path, const char *mode) {
    char buffer[NAME];
    struct stat about;
    const char *name = strpbrk(mode, "wa+") ? name_at(AT_FDCWD, path, buffer) : NULL;
    if (!name) return REAL(fopen64)(path, mode);
    int was = errno, missing = stat(path, &about);
    errno = was;
    const char *kind = missing ? "create" : *mode == 'w' ? "empty" : "open";
    FILE *stream = EVENT(FILE *, NULL, kind, name, NULL, missing, REAL(fopen64)(path, mode));
    if (stream) setvbuf(stream, NULL, _IONBF, 0);
    return stream;
}
FILE *fopen(const char *path, const char *mode) { return fopen64(path, mode); }

static ssize_t written(const void *data, size_t size, FILE *stream)
    WRITES(fileno(stream), REAL(fwrite)(data, 1, size, stream), -1, size, (ssize_t)REAL(fwrite)(data, 1, most, stream))
size_t fwrite(const void *data, size_t size, size_t count, FILE *stream) {
    ssize_t moved = written(data, size * count, stream);
    return moved < 0 || !size ? 0 : moved / size;
}
size_t fwrite_unlocked(const void *data, size_t size, size_t count, FILE *stream) { return fwrite(data, size, count, stream); }

/* --- the clock on the wall --- */

static long jump(void) {
    struct timespec now;
    if (!wall.jump) return 0;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec - wall.begun.tv_sec + 1e-9 * (now.tv_nsec - wall.begun.tv_nsec) >= wall.after ? wall.jump : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = REAL(gettimeofday)(now, zone);
    if (!result) now->tv_sec += jump();
    return result;
}

time_t time(time_t *now) {
    time_t seconds = REAL(time)(NULL) + jump();
    if (now) *now = seconds;
    return seconds;
}
