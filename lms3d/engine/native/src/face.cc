// The functions that Python calls (library.py), by ctypes. Text is UTF-8 and belongs to the calling thread until its next call.
#include <exception>
#include <memory>
#include <string>

#include "file_lane.h"
#include "gpu_kernels.h"
#include "lanes.h"
#include "system.h"

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

std::shared_ptr<lms3d::FileLane> Files(int64_t lane) {
  return std::dynamic_pointer_cast<lms3d::FileLane>(lms3d::GetLane(lane));
}

// The message that `use` throws; empty if it throws none.
template <class Use>
const char* WithFile(int64_t lane, int64_t slot, Use use) {
  const auto files = Files(lane);
  const auto file = files ? files->File(slot) : nullptr;
  if (!file) return Told("there is no such swap file");
  try {
    use(*file);
    return Told({});
  } catch (const std::exception& error) {
    return Told(error.what());
  }
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


// Makes kernels on GPUs with these two libraries from now on (gpu_kernels.h). Returns an empty text, or why it cannot.
const char* lms3d_use_gpu_kernels(const char* driver, const char* compiler) {
  return Told(lms3d::UseGpuKernels(driver, compiler));
}

// part_bytes and most_parts: see copiers.h. least_mapped_bytes: see swap_file.h.
int64_t lms3d_file_lane(const char* folder, int in_place, int64_t part_bytes, int64_t most_parts, int64_t least_mapped_bytes) {
  lms3d::FileSettings settings;
  settings.folder = folder;
  settings.in_place = in_place;
  settings.part_bytes = part_bytes;
  settings.most_parts = most_parts;
  settings.least_mapped_bytes = least_mapped_bytes;
  return Added([&] { return lms3d::MakeFileLane(settings); });
}

const char* lms3d_failure() { return text.c_str(); }

// Each of these returns the failure; empty if there was none.
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

// Calls of a file lane: see file_lane.h.
void lms3d_file_begin(int64_t lane) {
  if (const auto files = Files(lane)) files->Begin();
}
const char* lms3d_file_failed(int64_t lane) {
  const auto files = Files(lane);
  return Told(files ? files->Failed() : lms3d::Failure());
}
const char* lms3d_file_check(int64_t lane, int waited) {
  const auto files = Files(lane);
  return Told(files ? files->Check(waited) : lms3d::Failure());
}

// Calls of the file of a slot: see swap_file.h. A number goes to `result`.
const char* lms3d_file_write(int64_t lane, int64_t slot, const void* from, int64_t* result) {
  return WithFile(lane, slot, [=](lms3d::SwapFile& file) { *result = file.Write(from); });
}
const char* lms3d_file_read(int64_t lane, int64_t slot, void* to) {
  return WithFile(lane, slot, [=](lms3d::SwapFile& file) { file.Read(to); });
}
const char* lms3d_file_fetch(int64_t lane, int64_t slot, int64_t* result) {
  return WithFile(lane, slot, [=](lms3d::SwapFile& file) { *result = file.Fetch(); });
}
const char* lms3d_file_sync(int64_t lane, int64_t slot) {
  return WithFile(lane, slot, [](lms3d::SwapFile& file) { file.Sync(); });
}
const char* lms3d_file_remove(int64_t lane, int64_t slot) {
  return WithFile(lane, slot, [](lms3d::SwapFile& file) { file.Remove(); });
}
// The address at which its bytes lie.
const char* lms3d_file_place(int64_t lane, int64_t slot, int64_t* result) {
  return WithFile(lane, slot, [=](lms3d::SwapFile& file) { *result = reinterpret_cast<int64_t>(file.place().address); });
}

// For tests: see system.h. Returns 0 if no call has this name.
int lms3d_replace_call(const char* name, void* call) { return lms3d::ReplaceCall(name, call); }

void lms3d_close(int64_t lane) { lms3d::RemoveLane(lane); }

}  // extern "C"
