#include <mutex>
#include <unordered_map>
#include <utility>

#include "lanes.h"

namespace lms3d {
namespace {

std::mutex mutex;
int64_t last = 0;

// Never destroyed: operations may still run while the process ends.
std::unordered_map<int64_t, std::shared_ptr<Lane>>& Lanes() {
  static auto* lanes = new std::unordered_map<int64_t, std::shared_ptr<Lane>>;
  return *lanes;
}

}  // namespace

Listener& TheListener() {
  static Listener listener;
  return listener;
}

int64_t AddLane(std::shared_ptr<Lane> lane) {
  std::lock_guard<std::mutex> lock(mutex);
  Lanes()[++last] = std::move(lane);
  return last;
}

std::shared_ptr<Lane> GetLane(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = Lanes().find(number);
  return found == Lanes().end() ? nullptr : found->second;
}

void RemoveLane(int64_t number) {
  std::shared_ptr<Lane> let_go;
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = Lanes().find(number);
  if (found == Lanes().end()) return;
  let_go = std::move(found->second);
  Lanes().erase(found);
}

}  // namespace lms3d
