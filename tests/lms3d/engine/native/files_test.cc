// The lane of files without TensorFlow: `files_test FOLDER`, see `test_file_lane.py`.
//
// Steps swap tensors out, hold them, read them back and in place, from two threads at once as an executor does, while another
// asks the disk and counts. Ends with 0 if all bytes are right and no file is left; else it prints what is not.
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "file_lane.h"

namespace lms3d {
namespace {

constexpr int kSlots = 4, kSteps = 60;
constexpr size_t kSizes[] = {0, 100, 70000, 300001};

void Require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

std::shared_ptr<std::vector<char>> Tensor(size_t bytes, int filled) {
  return std::make_shared<std::vector<char>>(bytes, static_cast<char>(filled));
}

void Arrived(Lane& lane, int64_t slot, int64_t copy) {
  std::promise<Failure> ended;
  lane.Wait(slot, copy, nullptr, [&](const Failure& failure) { ended.set_value(failure); });
  const Failure failure = ended.get_future().get();
  Require(failure.empty(), failure);
}

// Returns the first byte that is wrong, or -1.
int64_t Wrong(const char* bytes, size_t size, int filled) {
  for (size_t i = 0; i < size; ++i) {
    if (bytes[i] != static_cast<char>(filled)) return i;
  }
  return -1;
}

void ReadInPlace(Lane& lane, int64_t slot, size_t size, int filled) {
  std::promise<Failure> ended;
  lane.ReadInPlace(slot, 1, [&](const Failure& failure, const Place& place) {
    const bool right = !failure.empty() || Wrong(static_cast<const char*>(place.address), size, filled) < 0;
    ended.set_value(right ? failure : "other bytes in place");
  });
  const Failure failure = ended.get_future().get();
  Require(failure.empty(), failure);
}

void Step(Lane& lane, int64_t slot, int filled) {
  const size_t size = kSizes[slot % kSlots];
  auto out = Tensor(size, filled), back = Tensor(size, 0);
  Require(lane.CopyOut(slot, out->data(), size, nullptr, out, nullptr).empty(), "not swapped out");
  Require(lane.CopyIn(slot, 0, back->data(), size, nullptr, back).empty(), "not fetched");
  if (filled % 2) ReadInPlace(lane, slot, size, filled);
  Arrived(lane, slot, kOut);
  Arrived(lane, slot, 0);
  Require(out.use_count() == 1 && back.use_count() == 1, "the lane still holds memory of the device");
  Require(Wrong(back->data(), size, filled) < 0, "other bytes came back");
  if (filled % 2 == 0) ReadInPlace(lane, slot, size, filled);
}

void Run(const std::string& folder, bool in_place) {
  const auto lane = MakeFileLane({folder, in_place, 1 << 16, 3, 1 << 10});
  for (int slot = 0; slot < 2 * kSlots; ++slot) Require(lane->Reserve(slot, kSizes[slot % kSlots]).empty(), "no room");
  const auto steps = [&](int first) {
    for (int step = 0; step < kSteps; ++step) {
      for (int slot = first; slot < first + kSlots; ++slot) Step(*lane, slot, 1 + step % 100);
    }
  };
  auto one = std::async(std::launch::async, steps, 0), other = std::async(std::launch::async, steps, kSlots);
  double bytes = 0;
  for (int i = 0; i < kSteps; ++i) {
    lane->Begin();
    Require(lane->Check(i % 8 == 0).empty(), "the disk has lost something");
    bytes += lane->Take().out_bytes;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  one.get();
  other.get();
  Require(lane->Settle().empty() && lane->Failed().empty(), lane->Failed());
  double expected = 0;
  for (size_t size : kSizes) expected += 2.0 * kSteps * size;
  Require(bytes + lane->Take().out_bytes == expected, "other bytes were counted");
  lane->Drop(1);
  std::promise<Failure> refused;
  lane->ReadInPlace(1, 0, [&](const Failure& failure, const Place&) { refused.set_value(failure); });
  Require(!refused.get_future().get().empty(), "a slot that was dropped can be read");
}

}  // namespace
}  // namespace lms3d

int main(int, char** words) {
  try {
    for (const bool in_place : {true, false}) lms3d::Run(words[1], in_place);
    lms3d::Require(rmdir(words[1]) == 0, "files are left");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
