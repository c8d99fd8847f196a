// A lane that finds too few threads: `threads_test FOLDER`, see `test_file_lane.py`.
//
// A container may have a limit on its processes. Whoever asks for a lane then gets an error that can be told, at whichever thread
// it happens, and the threads that were there already end. Ends with 0 if all of that is so.
#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "file_lane.h"
#include "lanes.h"

namespace {
int left = 0;  // threads that can still be made
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return left-- > 0 ? create(thread, attributes, run, argument) : EAGAIN;
}

namespace lms3d {
namespace {

// Makes a lane with more and more threads, until it has enough. Returns how often it had too few.
template <typename Make>
int Refusals(const Make& make) {
  for (int threads = 0;; ++threads) {
    left = threads;
    try {
      make();
      return threads;
    } catch (const std::runtime_error&) {
    }
  }
}

}  // namespace
}  // namespace lms3d

int main(int, char** words) {
  using namespace lms3d;
  const int memory = Refusals([] { MemoryLane(0, 0, 0, ""); });
  const int files = Refusals([&] { MakeFileLane({words[1], true, 1 << 16, 3, 1 << 10}); });
  if (memory == 2 && files == 4) return 0;  // one each way, and those that help to copy
  std::fprintf(stderr, "%d and %d threads were enough\n", memory, files);
  return 1;
}
