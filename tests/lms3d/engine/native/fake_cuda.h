// What a test asks of the driver that `fake_cuda.cc` plays, besides the calls of CUDA's.
#ifndef LMS3D_TESTS_FAKE_CUDA_H_
#define LMS3D_TESTS_FAKE_CUDA_H_

#include <cstddef>
#include <functional>

struct FakeCalls {
  void* (*new_stream)();  // in a context of its own
  // Runs `work` on the stream, as a kernel: after what the stream was given before.
  void (*launch)(void* stream, std::function<void()> work);
  void (*synchronize)(void* stream);
  void (*free_stream)(void* stream);
  // Bytes per second of a copy; 0: as fast as can be.
  void (*set_rate)(double rate);
  // No stream begins anything while paused.
  void (*pause)(bool paused);
  // The next call of this name fails with this code, once.
  void (*fail_next)(const char* call, int code);
  // Streams and events that live, and contexts that the calling thread has pushed.
  size_t (*streams)();
  size_t (*events)();
  size_t (*pushed)();
};

#endif  // LMS3D_TESTS_FAKE_CUDA_H_
