#include "copiers.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lms3d {
namespace {

constexpr size_t kPage = 4096;  // parts end where a page does

double ProcessorSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

}  // namespace

struct Copiers::Job {
  char* to;
  const char* from;
  size_t bytes, part;
  size_t begun = 0, copied = 0;  // bytes
};

Copiers::Copiers(size_t part_bytes, size_t most_parts) : part_bytes_(part_bytes), most_parts_(most_parts) {
  try {
    for (size_t i = 1; i < most_parts; ++i) helpers_.emplace_back([this] { Help(); });
  } catch (...) {  // the system has no more threads
    End();
    throw;
  }
}

Copiers::~Copiers() { End(); }

void Copiers::End() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Copiers::Copy(void* to, const void* from, size_t bytes) {
  const size_t parts = std::clamp<size_t>(bytes / part_bytes_, 1, most_parts_);
  const size_t part = ((bytes + parts - 1) / parts + kPage - 1) / kPage * kPage;
  const auto job = std::make_shared<Job>(Job{static_cast<char*>(to), static_cast<const char*>(from), bytes, part});
  if (parts > 1) {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(job);
    changed_.notify_all();
  }
  Work(*job);
  std::unique_lock<std::mutex> lock(mutex_);
  jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());
  ended_.wait(lock, [&] { return job->copied == bytes; });
}

double Copiers::TakeHelpersSeconds() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(helpers_seconds_, 0);
}

void Copiers::Help() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const auto job = jobs_.front();
    lock.unlock();
    const double began = ProcessorSeconds();
    Work(*job);
    const double seconds = ProcessorSeconds() - began;
    lock.lock();
    helpers_seconds_ += seconds;
    if (!jobs_.empty() && jobs_.front() == job) jobs_.pop_front();
  }
}

// Copies parts of a job until none is left to begin.
void Copiers::Work(Job& job) {
  size_t copied = 0;
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    const size_t at = job.begun, size = std::min(job.part, job.bytes - at);
    job.begun += size;
    if (!size) {
      job.copied += copied;
      ended_.notify_all();
      return;
    }
    lock.unlock();
    std::memcpy(job.to + at, job.from + at, size);
    copied += size;
  }
}

}  // namespace lms3d
