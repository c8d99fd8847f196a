// Copies between a device's memory and a place of the host, beside the work of the device. No TensorFlow here.
//
// A step has these operations (ops.cc), which make these calls:
//
//   swap out   CopyOut(slot)          fetch    CopyIn(slot, copy)
//   hold       Wait(slot, kOut)       arrive   Wait(slot, copy)       or, without a copy,   ReadInPlace(slot, copy)
//
// A slot is the place of one swapped tensor, for as long as its graph lives. Each copy that comes back from it has a number, since
// a tensor may come back more than once in a step.
//
// LANE-1  The copies of one direction run one after the other, in the order of the calls. The directions run side by side.
// LANE-2  A copy out begins when the device has made the tensor. A copy in begins when the device has done all work that it was
//         given before the call, since that may still use the memory, and when the slot has been written.
// LANE-3  Whoever uses memory that a copy reads or writes calls Wait first: work that the device is given afterwards comes after
//         the copy. The lane holds the memory until then, and no longer.
// LANE-4  No call waits for a copy that is under way, except Settle, Drop and the destructor, which no step calls.
//
// On a GPU the "device" is a stream, and Wait makes the stream wait. On a processor an operation is complete when its call
// returns, so Wait calls back when the copy has ended, and holds no thread meanwhile. The lane of files may make the copy in Wait.
#ifndef LMS3D_LANES_H_
#define LMS3D_LANES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lms3d {

constexpr int64_t kOut = -1;  // the number of the copy out; copies in count from 0

// Keeps memory of any kind alive.
using Owner = std::shared_ptr<void>;

// A failure, for people; empty if there was none.
using Failure = std::string;

// A stream of a GPU; null on a processor.
using Stream = void*;

// Page-locked memory of the host: its address and who owns it; null if there is none left.
struct Pinned {
  void* address = nullptr;
  Owner owner;
};
using Pin = std::function<Pinned(size_t bytes)>;

// The bytes of a slot, which may only be read, and the object that keeps them there.
struct Place {
  const void* address = nullptr;
  Owner owner;
};

struct Counters {
  double out_bytes = 0, in_bytes = 0;      // copied
  double out_seconds = 0, in_seconds = 0;  // in which the link was busy
  double processor_seconds = 0;            // that a processor spent on copying
};

class Lane {
 public:
  virtual ~Lane() = default;

  // Takes memory for a slot before its first copy, if the lane needs it so early.
  virtual Failure Reserve(int64_t slot, size_t bytes) { return {}; }

  virtual Failure CopyOut(int64_t slot, const void* from, size_t bytes, Stream stream, Owner source, const Pin& pin) = 0;
  virtual Failure CopyIn(int64_t slot, int64_t copy, void* to, size_t bytes, Stream stream, Owner target) = 0;
  // Calls `then` when all later work comes after the copy: at once on a GPU. A copy that never began counts as ended.
  virtual void Wait(int64_t slot, int64_t copy, Stream stream, std::function<void(const Failure&)> then) = 0;
  // Calls `then` with the place of the slot's bytes when it has been written, without a copy. On a processor only.
  virtual void ReadInPlace(int64_t slot, int64_t copy, std::function<void(const Failure&, const Place&)> then) {
    then("the lane has no place that can be read", {});
  }

  // Waits until every copy has ended, and lets go of all memory of the device. Called after a step that failed halfway.
  virtual Failure Settle() = 0;
  // Gives back a slot, after its copies have ended.
  virtual void Drop(int64_t slot) = 0;
  // The figures since the last call.
  virtual Counters Take() = 0;
};

// Another part of this process's memory, at a stated rate each way (bytes per second; 0: as fast as can be) and with a
// latency per copy. bus: a folder; processes that name the same one share the link. Empty: a link of one's own.
std::shared_ptr<Lane> MemoryLane(double out_rate, double in_rate, double latency_seconds, const std::string& bus);

// Page-locked memory of the host, beside a GPU. driver: CUDA's library. Throws std::runtime_error without it.
std::shared_ptr<Lane> CudaLane(const std::string& driver = "libcuda.so.1");

// Called for each transfer by the thread that makes it, for a profile; `ended` gets the result of `begins`. Null: nobody listens.
struct Listener {
  void* (*begins)(bool out) = nullptr;
  void (*ended)(void* mark, size_t bytes) = nullptr;
};
Listener& TheListener();

// Lanes by number, for operations, whose attributes are numbers. Get: null if the lane was removed.
int64_t AddLane(std::shared_ptr<Lane> lane);
std::shared_ptr<Lane> GetLane(int64_t number);
void RemoveLane(int64_t number);

}  // namespace lms3d

#endif  // LMS3D_LANES_H_
