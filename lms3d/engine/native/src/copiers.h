// Copies on several cores at once.
//
// The step computes on all cores at the same time: if one core copied alone, the others would wait for its part of an operation.
#ifndef LMS3D_COPIERS_H_
#define LMS3D_COPIERS_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace lms3d {

class Copiers {
 public:
  // A copy is divided into at most `most_parts` parts of at least `part_bytes`.
  Copiers(size_t part_bytes, size_t most_parts);
  ~Copiers();
  Copiers(const Copiers&) = delete;
  Copiers& operator=(const Copiers&) = delete;

  void Copy(void* to, const void* from, size_t bytes);
  // Seconds of processors that threads other than the callers spent on copying since the last call.
  double TakeHelpersSeconds();

 private:
  struct Job;

  void End();
  void Help();
  void Work(Job& job);

  const size_t part_bytes_, most_parts_;
  std::mutex mutex_;
  std::condition_variable changed_, ended_;
  bool closing_ = false;
  double helpers_seconds_ = 0;
  std::deque<std::shared_ptr<Job>> jobs_;  // with parts that nobody has begun
  std::vector<std::thread> helpers_;
};

}  // namespace lms3d

#endif  // LMS3D_COPIERS_H_
