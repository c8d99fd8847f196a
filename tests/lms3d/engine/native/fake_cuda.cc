// The calls of CUDA's driver that `cuda_lane.cc` looks up, played by threads: one for each stream, which does what it was given in
// order. Copies are slow, in pieces, so that whoever does not wait for them sees it. An event knows how often it was recorded, and
// how many of these its streams have reached; who waits for it waits for the last record before the wait, as in CUDA.
//
// FAKE-1  Stricter than CUDA where that finds mistakes: the context of a stream must be current.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda.h"

namespace {

using Clock = std::chrono::steady_clock;
using Work = std::function<void()>;

constexpr int kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600;
constexpr int kPieces = 4;

struct Context {};

struct State {  // of an event; streams hold it after the event is destroyed
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
  Clock::time_point moment;
};

struct Event {
  Context* context;
  std::shared_ptr<State> state = std::make_shared<State>();
};

std::mutex pause_mutex;
std::condition_variable pause_changed;
bool paused = false;

struct Stream {
  explicit Stream(Context* context) : context(context), thread([this] { Run(); }) {}
  ~Stream() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      closing = true;
    }
    changed.notify_all();
    thread.join();
  }
  void Give(Work work) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      queue.push_back(std::move(work));
    }
    changed.notify_all();
  }
  void Synchronize() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return queue.empty() && !busy; });
  }
  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return closing || !queue.empty(); });
      if (queue.empty()) return;
      Work work = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      {
        std::unique_lock<std::mutex> pause_lock(pause_mutex);
        pause_changed.wait(pause_lock, [] { return !paused; });
      }
      work();
      work = nullptr;
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  Context* context;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  bool busy = false, closing = false;
  std::thread thread;
};

thread_local std::vector<Context*> current;
std::atomic<size_t> streams{0}, events{0};
std::atomic<double> rate{0};
std::mutex fail_mutex;
std::string fail_call;
int fail_code = 0;

// The code that the test asked for, if this is the call.
int Fails(const char* call) {
  std::lock_guard<std::mutex> lock(fail_mutex);
  if (fail_call != call) return 0;
  fail_call.clear();
  return fail_code;
}

bool IsCurrent(const Context* context) { return !current.empty() && current.back() == context; }

int Copy(const char* call, void* to, const void* from, size_t bytes, void* handle) {
  if (const int code = Fails(call)) return code;
  auto* stream = static_cast<Stream*>(handle);
  if (!stream || !IsCurrent(stream->context)) return kInvalidHandle;
  stream->Give([=] {
    for (int piece = 0; piece < kPieces; ++piece) {
      const size_t begin = bytes * piece / kPieces, end = bytes * (piece + 1) / kPieces;
      if (rate > 0) std::this_thread::sleep_for(std::chrono::duration<double>((end - begin) / rate));
      std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
    }
  });
  return 0;
}

}  // namespace

extern "C" {

int cuStreamGetCtx(void* stream, void** context) {
  if (const int code = Fails("cuStreamGetCtx")) return code;
  if (!stream) return kInvalidHandle;
  *context = static_cast<Stream*>(stream)->context;
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  if (const int code = Fails("cuCtxPushCurrent")) return code;
  current.push_back(static_cast<Context*>(context));
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return 0;
}

int cuStreamCreate(void** stream, unsigned flags) {
  if (const int code = Fails("cuStreamCreate")) return code;
  if (current.empty()) return kInvalidContext;
  if (flags != 1) return kInvalidValue;
  *stream = new Stream(current.back());
  ++streams;
  return 0;
}

int cuStreamDestroy_v2(void* stream) {
  if (const int code = Fails("cuStreamDestroy")) return code;
  if (!stream) return kInvalidHandle;
  delete static_cast<Stream*>(stream);
  --streams;
  return 0;
}

int cuStreamSynchronize(void* stream) {
  if (const int code = Fails("cuStreamSynchronize")) return code;
  if (!stream) return kInvalidHandle;
  static_cast<Stream*>(stream)->Synchronize();
  return 0;
}

int cuEventCreate(void** event, unsigned) {
  if (const int code = Fails("cuEventCreate")) return code;
  if (current.empty()) return kInvalidContext;
  *event = new Event{current.back()};
  ++events;
  return 0;
}

int cuEventDestroy_v2(void* event) {
  if (const int code = Fails("cuEventDestroy")) return code;
  if (!event) return kInvalidHandle;
  delete static_cast<Event*>(event);
  --events;
  return 0;
}

int cuEventRecord(void* handle, void* stream_handle) {
  if (const int code = Fails("cuEventRecord")) return code;
  auto* event = static_cast<Event*>(handle);
  auto* stream = static_cast<Stream*>(stream_handle);
  if (!event || !stream || event->context != stream->context) return kInvalidHandle;
  auto state = event->state;
  uint64_t number;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    number = ++state->recorded;
  }
  stream->Give([state, number] {
    std::lock_guard<std::mutex> lock(state->mutex);
    state->reached = std::max(state->reached, number);
    state->moment = Clock::now();
    state->changed.notify_all();
  });
  return 0;
}

int cuEventQuery(void* event) {
  if (const int code = Fails("cuEventQuery")) return code;
  if (!event) return kInvalidHandle;
  const auto& state = static_cast<Event*>(event)->state;
  std::lock_guard<std::mutex> lock(state->mutex);
  return state->reached == state->recorded ? 0 : kNotReady;
}

int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  if (const int code = Fails("cuEventElapsedTime")) return code;
  Clock::time_point moments[2];
  int i = 0;
  for (void* event : {from, to}) {
    const auto& state = static_cast<Event*>(event)->state;
    std::lock_guard<std::mutex> lock(state->mutex);
    if (!state->recorded) return kInvalidHandle;
    if (state->reached != state->recorded) return kNotReady;
    moments[i++] = state->moment;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(moments[1] - moments[0]).count();
  return 0;
}

int cuStreamWaitEvent(void* handle, void* event, unsigned) {
  if (const int code = Fails("cuStreamWaitEvent")) return code;
  auto* stream = static_cast<Stream*>(handle);
  if (!stream || !event) return kInvalidHandle;
  auto state = static_cast<Event*>(event)->state;
  uint64_t number;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    number = state->recorded;
  }
  stream->Give([state, number] {
    std::unique_lock<std::mutex> lock(state->mutex);
    state->changed.wait(lock, [&] { return state->reached >= number; });
  });
  return 0;
}

int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* stream) {
  return Copy("cuMemcpyDtoHAsync", to, reinterpret_cast<const void*>(from), bytes, stream);
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void* stream) {
  return Copy("cuMemcpyHtoDAsync", reinterpret_cast<void*>(to), from, bytes, stream);
}

int cuGetErrorString(int code, const char** text) {
  *text = code == 700 ? "an illegal memory access was encountered" : nullptr;
  return 0;
}

const FakeCalls* fake_cuda() {
  static const FakeCalls calls = {
      []() -> void* { return new Stream(new Context); },
      [](void* stream, Work work) { static_cast<Stream*>(stream)->Give(std::move(work)); },
      [](void* stream) { static_cast<Stream*>(stream)->Synchronize(); },
      [](void* stream) {
        const Context* context = static_cast<Stream*>(stream)->context;
        delete static_cast<Stream*>(stream);
        delete context;
      },
      [](double bytes_per_second) { rate = bytes_per_second; },
      [](bool now) {
        {
          std::lock_guard<std::mutex> lock(pause_mutex);
          paused = now;
        }
        pause_changed.notify_all();
      },
      [](const char* call, int code) {
        std::lock_guard<std::mutex> lock(fail_mutex);
        fail_call = call;
        fail_code = code;
      },
      []() -> size_t { return streams; },
      []() -> size_t { return events; },
      []() -> size_t { return current.size(); },
  };
  return &calls;
}

}  // extern "C"
