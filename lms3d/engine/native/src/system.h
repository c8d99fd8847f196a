// The calls of the operating system on which a swap file depends. A test puts others in their place (face.cc).
#ifndef LMS3D_SYSTEM_H_
#define LMS3D_SYSTEM_H_

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace lms3d {

struct System {
  ssize_t (*pwrite)(int file, const void* from, size_t bytes, off_t at);
  ssize_t (*pread)(int file, void* to, size_t bytes, off_t at);
  void* (*mmap)(void* address, size_t bytes, int protection, int flags, int file, off_t at);
  int (*mincore)(void* address, size_t bytes, unsigned char* pages);
  int (*msync)(void* address, size_t bytes, int flags);
  int (*fdatasync)(int file);
  long (*blocks_read)();  // of a disk, by this thread
};

System& TheSystem();

// Replaces the call of this name by `call`; null restores the system's own. False if there is no such name.
bool ReplaceCall(const std::string& name, void* call);

}  // namespace lms3d

#endif  // LMS3D_SYSTEM_H_
