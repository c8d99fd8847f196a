// Page-locked host memory beside a GPU, over two streams of the driver's: see lanes.h.
//
//   compute stream   .. makes x, [ready] ............ waits for [out] (Wait), memory of x goes to others ..
//   out stream             waits for [ready], copies x, [out]
//
//   compute stream   .. memory of z is free, [mine] .............. waits for [in] (Wait), reads z ..
//   in stream                       waits for [mine] and [out], copies to z, [in]
//
// [..] are events, recorded anew in each step. The order is fixed when the work is enqueued; no call waits for the GPU. The slot
// keeps its page-locked memory from step to step: the host's pool must not hand it to anybody while a copy still reads it, and
// nobody on the host knows when that copy ends.
//
// CUDA's headers are not needed: the calls of its driver are looked up by name.
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lanes.h"
#include "mutations.h"

namespace lms3d {
namespace {

using Context = struct CUctx_st*;
using Event = struct CUevent_st*;
using Address = unsigned long long;
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING: not ordered by the legacy stream

struct Driver {
  explicit Driver(const std::string& name) {
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!library) throw std::runtime_error("CUDA's driver " + name + " cannot be loaded: " + dlerror());
    const auto find = [&](auto& call, const char* symbol) {
      call = reinterpret_cast<std::decay_t<decltype(call)>>(dlsym(library, symbol));
      if (!call) throw std::runtime_error("CUDA's driver " + name + " has no " + symbol);
    };
    find(context_of, "cuStreamGetCtx");
    find(push, "cuCtxPushCurrent_v2");
    find(pop, "cuCtxPopCurrent_v2");
    find(make_stream, "cuStreamCreate");
    find(destroy_stream, "cuStreamDestroy_v2");
    find(synchronize, "cuStreamSynchronize");
    find(make_event, "cuEventCreate");
    find(destroy_event, "cuEventDestroy_v2");
    find(record, "cuEventRecord");
    find(query, "cuEventQuery");
    find(elapsed, "cuEventElapsedTime");
    find(wait, "cuStreamWaitEvent");
    find(to_host, "cuMemcpyDtoHAsync_v2");
    find(to_device, "cuMemcpyHtoDAsync_v2");
    find(error_text, "cuGetErrorString");
  }

  std::string Text(int code) const {
    const char* text = nullptr;
    error_text(code, &text);
    return text ? text : "error " + std::to_string(code);
  }

  int (*context_of)(Stream, Context*);
  int (*push)(Context);
  int (*pop)(Context*);
  int (*make_stream)(Stream*, unsigned);
  int (*destroy_stream)(Stream);
  int (*synchronize)(Stream);
  int (*make_event)(Event*, unsigned);
  int (*destroy_event)(Event);
  int (*record)(Event, Stream);
  int (*query)(Event);
  int (*elapsed)(float* milliseconds, Event from, Event to);
  int (*wait)(Stream, Event, unsigned);
  int (*to_host)(void*, Address, size_t, Stream);
  int (*to_device)(Address, const void*, size_t, Stream);
  int (*error_text)(int, const char**);
};

// The first call that failed, if any. After a failure no other call is made.
class Calls {
 public:
  Calls(const Driver& driver, std::string work) : driver_(driver), work_(std::move(work)) {}
  template <class Call, class... Arguments>
  bool operator()(const char* name, Call call, Arguments... arguments) {
    if (!failure_.empty()) return false;
    if (const int code = call(arguments...)) {
      failure_ = std::string("CUDA's ") + name + " failed while " + work_ + ": " + driver_.Text(code);
    }
    return failure_.empty();
  }
  const Failure& failure() const { return failure_; }

 private:
  const Driver& driver_;
  std::string work_;
  Failure failure_;
};

// Makes a context current for as long as it lives.
class Current {
 public:
  Current(const Driver& driver, Calls& calls, Context context) : driver_(driver) {
    pushed_ = calls("cuCtxPushCurrent", driver.push, context);
  }
  ~Current() {
    Context old;
    if (pushed_) driver_.pop(&old);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  bool pushed_;
};

struct Copy {  // one direction of one slot
  Event begin = nullptr, end = nullptr;
  Owner owner;           // of the device's memory, until Wait
  bool counted = true;   // its seconds, and its bytes
};

struct Slot {
  Context context = nullptr;
  Pinned memory;
  size_t bytes = 0;
  Event ready = nullptr;
  std::map<int64_t, Event> mine;  // by the number of the copy in
  std::map<int64_t, Copy> copies;
};

struct Streams {
  Stream out = nullptr, in = nullptr;
  std::vector<Stream> Made() const {
    std::vector<Stream> made;
    for (const Stream stream : {out, in}) {
      if (stream) made.push_back(stream);
    }
    return made;
  }
};

std::string Size(size_t bytes) { return std::to_string(bytes) + " bytes"; }

class Cuda : public Lane {
 public:
  explicit Cuda(const std::string& driver) : driver_(driver) {}

  ~Cuda() override {
    Settle();
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [number, slot] : slots_) Free(slot);
    for (auto& [context, streams] : streams_) {
      Calls calls(driver_, "closing");
      Current current(driver_, calls, context);
      for (const Stream stream : streams.Made()) calls("cuStreamDestroy", driver_.destroy_stream, stream);
    }
  }

  Failure CopyOut(int64_t number, const void* from, size_t bytes, Stream compute, Owner source, const Pin& pin) override {
    Calls calls(driver_, "copying " + Size(bytes) + " to the host");
    std::lock_guard<std::mutex> lock(mutex_);
    Context context = nullptr;
    if (!calls("cuStreamGetCtx", driver_.context_of, compute, &context)) return calls.failure();
    Current current(driver_, calls, context);
    Streams& streams = StreamsOf(context, calls);
    Slot& slot = slots_[number];
    if (slot.context != context || slot.bytes != bytes) {
      if (slot.context) {  // a copy may still use its memory
        Synchronize(slot.context, calls);
        Free(slot);
      }
      slot.context = context;
      slot.memory = pin(bytes);
      slot.bytes = bytes;
      if (!slot.memory.address) {
        slots_.erase(number);
        return "no page-locked host memory for " + Size(bytes) + " that are swapped out: raise TF_GPU_HOST_MEM_LIMIT_IN_MB";
      }
    }
    Copy& copy = CopyOf(slot, kOut, calls);
    Make(slot.ready, calls);
    calls("cuEventRecord", driver_.record, slot.ready, compute);
    calls("cuStreamWaitEvent", driver_.wait, streams.out, slot.ready, 0u);
    calls("cuEventRecord", driver_.record, copy.begin, streams.out);
    calls("cuMemcpyDtoHAsync", driver_.to_host, slot.memory.address, reinterpret_cast<Address>(from), bytes, streams.out);
    Begun(copy, streams.out, std::move(source), calls);
    return calls.failure();
  }

  Failure CopyIn(int64_t number, int64_t which, void* to, size_t bytes, Stream compute, Owner target) override {
    Calls calls(driver_, "copying " + Size(bytes) + " back from the host");
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = slots_.find(number);
    if (found == slots_.end() || found->second.bytes != bytes) return "the slot does not hold such a tensor";
    Slot& slot = found->second;
    Current current(driver_, calls, slot.context);
    Streams& streams = StreamsOf(slot.context, calls);
    Copy& copy = CopyOf(slot, which, calls);
    Event& mine = slot.mine[which];
    Make(mine, calls);
    calls("cuEventRecord", driver_.record, mine, compute);  // LANE-2
    if (!kFetchDoesNotWaitForCompute) calls("cuStreamWaitEvent", driver_.wait, streams.in, mine, 0u);
    if (!kFetchDoesNotWaitForOut) calls("cuStreamWaitEvent", driver_.wait, streams.in, slot.copies[kOut].end, 0u);
    calls("cuEventRecord", driver_.record, copy.begin, streams.in);
    calls("cuMemcpyHtoDAsync", driver_.to_device, reinterpret_cast<Address>(to), slot.memory.address, bytes, streams.in);
    Begun(copy, streams.in, std::move(target), calls);
    return calls.failure();
  }

  void Wait(int64_t number, int64_t which, Stream compute, std::function<void(const Failure&)> then) override {
    Owner let_go;
    Calls calls(driver_, "waiting for a copy");
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = slots_.find(number);
      if (found != slots_.end() && found->second.copies.count(which)) {
        Copy& copy = found->second.copies[which];
        const bool skipped = which == kOut ? kHoldDoesNotWait : kArriveDoesNotWait;
        Current current(driver_, calls, found->second.context);
        if (!skipped) calls("cuStreamWaitEvent", driver_.wait, compute, copy.end, 0u);
        if (calls.failure().empty()) let_go = std::move(copy.owner);  // else Settle lets go
      }
    }
    let_go.reset();
    then(calls.failure());
  }

  Failure Settle() override {
    Calls calls(driver_, "waiting for the copies of a step that failed");
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [context, streams] : streams_) Synchronize(context, calls);
    for (auto& [number, slot] : slots_) {
      for (auto& [which, copy] : slot.copies) copy.owner.reset();
    }
    return calls.failure();
  }

  void Drop(int64_t number) override {
    Settle();
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = slots_.find(number);
    if (found == slots_.end()) return;
    Free(found->second);
    slots_.erase(found);
  }

  // The figures of the copies that have ended; those under way count the next time.
  Counters Take() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [number, slot] : slots_) {
      Calls calls(driver_, "counting");
      Current current(driver_, calls, slot.context);
      for (auto& [which, copy] : slot.copies) Count(slot, which, copy);
    }
    return std::exchange(counters_, Counters());
  }

 private:
  Streams& StreamsOf(Context context, Calls& calls) {
    Streams& streams = streams_[context];
    if (!streams.out) calls("cuStreamCreate", driver_.make_stream, &streams.out, kNonBlocking);
    if (!streams.in) calls("cuStreamCreate", driver_.make_stream, &streams.in, kNonBlocking);
    return streams;
  }

  void Make(Event& event, Calls& calls) {
    if (!event) calls("cuEventCreate", driver_.make_event, &event, 0u);
  }

  Copy& CopyOf(Slot& slot, int64_t which, Calls& calls) {
    Copy& copy = slot.copies[which];
    Count(slot, which, copy);  // its events are recorded anew
    Make(copy.begin, calls);
    Make(copy.end, calls);
    return copy;
  }

  // Counts each copy that has ended. If the host runs ahead by a whole step, the copy of the step before is not counted.
  void Count(const Slot& slot, int64_t which, Copy& copy) {
    float milliseconds = 0;
    if (copy.counted || driver_.query(copy.end) || driver_.elapsed(&milliseconds, copy.begin, copy.end)) return;
    copy.counted = true;
    (which == kOut ? counters_.out_bytes : counters_.in_bytes) += slot.bytes;
    (which == kOut ? counters_.out_seconds : counters_.in_seconds) += 1e-3 * milliseconds;
  }

  void Begun(Copy& copy, Stream stream, Owner owner, Calls& calls) {
    calls("cuEventRecord", driver_.record, copy.end, stream);
    copy.owner = std::move(owner);
    copy.counted = !calls.failure().empty();
  }

  void Synchronize(Context context, Calls& calls) {
    Current current(driver_, calls, context);
    for (const Stream stream : streams_[context].Made()) calls("cuStreamSynchronize", driver_.synchronize, stream);
  }

  // Nothing of the slot is under way.
  void Free(Slot& slot) {
    Calls calls(driver_, "giving back");
    Current current(driver_, calls, slot.context);
    const auto destroy = [&](Event event) {
      if (event) calls("cuEventDestroy", driver_.destroy_event, event);
    };
    destroy(slot.ready);
    for (auto& [which, event] : slot.mine) destroy(event);
    for (auto& [which, copy] : slot.copies) {
      Count(slot, which, copy);
      destroy(copy.begin);
      destroy(copy.end);
    }
    slot = Slot();
  }

  const Driver driver_;
  std::mutex mutex_;
  std::map<Context, Streams> streams_;
  std::unordered_map<int64_t, Slot> slots_;
  Counters counters_;
};

}  // namespace

std::shared_ptr<Lane> CudaLane(const std::string& driver) { return std::make_shared<Cuda>(driver); }

}  // namespace lms3d
