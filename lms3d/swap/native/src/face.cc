// What Python calls (library.py), by ctypes. Text is UTF-8 and belongs to the calling thread until its next call.
#include <exception>
#include <string>

#include "lanes.h"

namespace {

thread_local std::string text;

template <class Make>
int64_t Added(Make make) {
  try {
    text.clear();
    return lms3d::AddLane(make());
  } catch (const std::exception& error) {
    text = error.what();
    return 0;
  }
}

const char* Told(const lms3d::Failure& failure) {
  text = failure;
  return text.c_str();
}

}  // namespace

extern "C" {

// The number of a new lane; 0 if it could not be made: `lms3d_failure` says why.
int64_t lms3d_memory_lane(double out_rate, double in_rate, double latency_seconds, const char* bus) {
  return Added([=] { return lms3d::MemoryLane(out_rate, in_rate, latency_seconds, bus); });
}
int64_t lms3d_cuda_lane(const char* driver) {
  return Added([=] { return lms3d::CudaLane(driver); });
}

const char* lms3d_failure() { return text.c_str(); }

// Each returns what failed; empty: nothing.
const char* lms3d_reserve(int64_t lane, int64_t slot, int64_t bytes) {
  const auto found = lms3d::GetLane(lane);
  return Told(found ? found->Reserve(slot, bytes) : "the lane is closed");
}
const char* lms3d_settle(int64_t lane) {
  const auto found = lms3d::GetLane(lane);
  return Told(found ? found->Settle() : lms3d::Failure());
}

void lms3d_drop(int64_t lane, int64_t slot) {
  if (const auto found = lms3d::GetLane(lane)) found->Drop(slot);
}

// figures: bytes out and in, busy seconds out and in, processor seconds of copies.
void lms3d_take(int64_t lane, double* figures) {
  const auto found = lms3d::GetLane(lane);
  const lms3d::Counters taken = found ? found->Take() : lms3d::Counters();
  figures[0] = taken.out_bytes;
  figures[1] = taken.in_bytes;
  figures[2] = taken.out_seconds;
  figures[3] = taken.in_seconds;
  figures[4] = taken.processor_seconds;
}

void lms3d_close(int64_t lane) { lms3d::RemoveLane(lane); }

}  // extern "C"
