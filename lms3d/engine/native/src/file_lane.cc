// Each direction has a thread. But a step that waits for a copy that nobody has begun makes it itself: another thread would have
// to be woken first, and has the same processors. (500 pairs of 50 KB in a chain, on two cores with other work: a pair takes 45 us
// of processor time and 35 us on the clock. If the thread makes all copies, it takes 115 us and 232 us.)
#include "file_lane.h"

#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "copiers.h"
#include "mutations.h"

namespace lms3d {
namespace {

using Then = std::function<void(const Failure&)>;
using Key = std::pair<int64_t, int64_t>;  // slot, copy

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

struct Slot {
  std::shared_ptr<SwapFile> file;
  bool doubt = true;  // MAPPED-2
};

// A task of a thread: `work` returns the bytes that it moved, or throws.
struct Transfer {
  Key key;
  std::function<size_t()> work;
  std::string what;  // for people, if it fails: "moving ..."
};

struct Done {
  size_t bytes = 0;
  double busy = 0, processor = 0;  // seconds
  Failure failure;
};

class Files : public FileLane {
 public:
  explicit Files(const FileSettings& settings)
      : settings_(settings), copiers_(std::make_shared<Copiers>(settings.part_bytes, settings.most_parts)) {
    try {
      for (Way* way : {&out_, &in_}) way->thread = std::thread([this, way] { Run(*way); });
    } catch (...) {  // the system has no more threads
      End();
      throw;
    }
  }

  ~Files() override { End(); }

  Failure Reserve(int64_t number, size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string path = settings_.folder + "/" + std::to_string(number) + ".bin";
    try {
      slots_[number].file = std::make_shared<SwapFile>(path, bytes, settings_, copiers_);
    } catch (const std::exception& error) {
      slots_.erase(number);
      return std::string(error.what()) + " while mapping " + std::to_string(bytes) + " bytes";
    }
    return {};
  }

  Failure CopyOut(int64_t number, const void* from, size_t bytes, Stream, Owner source, const Pin&) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto file = FileOf(number, bytes);
    if (!file) return kUnknown;
    const auto work = [this, number, file, from] {
      const bool there = file->Write(from);
      std::lock_guard<std::mutex> lock(mutex_);
      if (const auto found = slots_.find(number); found != slots_.end()) found->second.doubt = pages_go_ || !there;
      return file->bytes();
    };
    Submit(out_, {{number, kOut}, work, Moving(bytes)}, std::move(source));
    return {};
  }

  Failure CopyIn(int64_t number, int64_t copy, void* to, size_t bytes, Stream, Owner target) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto file = FileOf(number, bytes);
    if (!file) return kUnknown;
    const auto work = [file, to] {
      file->Read(to);
      return file->bytes();
    };
    Submit(in_, {{number, copy}, work, Moving(bytes)}, std::move(target));
    return {};
  }

  void Wait(int64_t number, int64_t copy, Stream, Then then) override {
    const Key key{number, copy};
    std::unique_lock<std::mutex> lock(mutex_);
    const bool skipped = copy == kOut ? kHoldDoesNotWait : kArriveDoesNotWait;
    if (!skipped) Help(key, lock);
    if (under_way_.count(key) && !skipped) {
      waiting_[key].push_back(std::move(then));
      return;
    }
    Owner let_go = Release(key);
    const Failure failure = FailureOf(key);
    lock.unlock();
    let_go.reset();
    then(failure);
  }

  void ReadInPlace(int64_t number, int64_t copy, std::function<void(const Failure&, const Place&)> then) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const Key written{number, kOut};
    Help(written, lock);
    if (under_way_.count(written)) {
      after_[written].push_back([=](const Failure&) { ReadInPlace(number, copy, then); });
      return;
    }
    const auto found = slots_.find(number);
    Failure failure = found == slots_.end() || closing_ ? kUnknown : FailureOf(written);
    const Place place = failure.empty() ? found->second.file->place() : Place();
    if (failure.empty() && found->second.doubt) {
      waiting_[{number, copy}].push_back([=](const Failure& failure) { then(failure, place); });
      Submit(in_, {{number, copy}, LookAt(found->second.file), "moving what was swapped out back"}, {});
      return;
    }
    lock.unlock();
    then(failure, place);
  }

  Failure Settle() override {
    std::map<Key, Owner> let_go;
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return under_way_.empty(); });
    let_go.swap(owners_);
    lock.unlock();
    return {};
  }

  void Drop(int64_t number) override {
    Slot let_go;
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [=] {
      const auto first = under_way_.lower_bound({number, kOut});
      return first == under_way_.end() || first->first != number;
    });
    if (const auto found = slots_.find(number); found != slots_.end()) {
      let_go = std::move(found->second);
      slots_.erase(found);
    }
    failures_.erase(failures_.lower_bound({number, kOut}), failures_.lower_bound({number + 1, kOut}));
    lock.unlock();
    if (let_go.file) let_go.file->Remove();  // now, whoever still has it
  }

  Counters Take() override {
    std::lock_guard<std::mutex> lock(mutex_);
    counters_.processor_seconds += copiers_->TakeHelpersSeconds();
    return std::exchange(counters_, Counters());
  }

  void Begin() override {
    std::lock_guard<std::mutex> lock(mutex_);
    failed_.clear();
  }

  Failure Failed() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return failed_;
  }

  Failure Check(bool waited) override {
    std::vector<std::shared_ptr<SwapFile>> files;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      pages_go_ = std::exchange(fetched_, false) || waited;
      if (!waited) return {};
      for (const auto& [number, slot] : slots_) files.push_back(slot.file);
    }
    try {
      for (const auto& file : files) file->Sync();
    } catch (const std::runtime_error& error) {
      std::lock_guard<std::mutex> lock(mutex_);
      return Note(std::string(error.what()) + " while writing back what was swapped out");
    }
    return {};
  }

  std::shared_ptr<SwapFile> File(int64_t number) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = slots_.find(number);
    return found == slots_.end() ? nullptr : found->second.file;
  }

 private:
  void End() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    for (Way* way : {&out_, &in_}) {
      way->changed.notify_all();
      if (way->thread.joinable()) way->thread.join();
    }
  }

  struct Way {
    std::deque<Transfer> queue;
    bool busy = false;  // LANE-1
    std::condition_variable changed;
    std::thread thread;
  };

  static constexpr char kUnknown[] = "the slot does not hold such a tensor";

  static std::string Moving(size_t bytes) { return "moving " + std::to_string(bytes) + " bytes"; }

  // The functions below are called with the lock held.

  std::shared_ptr<SwapFile> FileOf(int64_t number, size_t bytes) const {
    const auto found = slots_.find(number);
    return found != slots_.end() && found->second.file->bytes() == bytes ? found->second.file : nullptr;
  }

  Failure FailureOf(const Key& key) const {
    const auto found = failures_.find(key);
    return found == failures_.end() ? Failure() : found->second;
  }

  Failure Note(const Failure& failure) {
    pages_go_ = true;
    if (failed_.empty()) failed_ = failure;
    return failure;
  }

  void Submit(Way& way, Transfer transfer, Owner owner) {
    under_way_.insert(transfer.key);
    failures_.erase(transfer.key);
    owners_[transfer.key] = std::move(owner);
    way.queue.push_back(std::move(transfer));
    way.changed.notify_one();
  }

  Owner Release(const Key& key) {
    const auto found = owners_.find(key);
    if (found == owners_.end()) return {};
    Owner owner = std::move(found->second);
    owners_.erase(found);
    return owner;
  }

  // LANE-1, and LANE-2: the slot has been written. No later copy may overtake.
  bool Ready(const Way& way) const {
    if (way.busy || way.queue.empty()) return false;
    const Key& key = way.queue.front().key;
    return key.second == kOut || kFetchDoesNotWaitForOut || !under_way_.count({key.first, kOut});
  }

  // Runs in a thread of its own, without the lock.
  std::function<size_t()> LookAt(const std::shared_ptr<SwapFile>& file) {
    return [this, file] {
      const size_t fetched = file->Fetch();
      std::lock_guard<std::mutex> lock(mutex_);
      fetched_ |= fetched > 0;
      return fetched;
    };
  }

  void Run(Way& way) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      way.changed.wait(lock, [&] { return Ready(way) || (closing_ && way.queue.empty()); });
      if (way.queue.empty()) return;  // closing; what was asked for still ends
      MakeNext(way, lock);
    }
  }

  // Makes the next copy if nobody has begun it.
  void Help(const Key& key, std::unique_lock<std::mutex>& lock) {
    Way& way = key.second == kOut ? out_ : in_;
    if (Ready(way) && way.queue.front().key == key) MakeNext(way, lock);
  }

  void MakeNext(Way& way, std::unique_lock<std::mutex>& lock) {
    const Transfer transfer = std::move(way.queue.front());
    way.queue.pop_front();
    way.busy = true;
    const Failure before = FailureOf({transfer.key.first, kOut});
    lock.unlock();
    const Done done = before.empty() ? Carry(transfer) : Done{0, 0, 0, before};  // what was not written cannot come back
    lock.lock();
    way.busy = false;
    Ended(transfer.key, done, lock);
  }

  static Done Carry(const Transfer& transfer) {
    const double began = Seconds(CLOCK_MONOTONIC), processor = Seconds(CLOCK_THREAD_CPUTIME_ID);
    const Listener& listener = TheListener();
    void* mark = listener.begins ? listener.begins(transfer.key.second == kOut) : nullptr;
    Done done;
    try {
      done.bytes = transfer.work();
    } catch (const std::exception& error) {
      done.failure = std::string(error.what()) + " while " + transfer.what;
    }
    if (mark) listener.ended(mark, done.bytes);
    done.busy = Seconds(CLOCK_MONOTONIC) - began;
    done.processor = Seconds(CLOCK_THREAD_CPUTIME_ID) - processor;
    return done;
  }

  void Ended(const Key& key, const Done& done, std::unique_lock<std::mutex>& lock) {
    const bool out = key.second == kOut;
    (out ? counters_.out_bytes : counters_.in_bytes) += done.bytes;
    (out ? counters_.out_seconds : counters_.in_seconds) += done.busy;
    counters_.processor_seconds += done.processor;
    if (!done.failure.empty()) failures_[key] = Note(done.failure);
    Owner let_go = Release(key);  // the memory is free before anybody hears of it
    lock.unlock();
    let_go.reset();
    lock.lock();
    under_way_.erase(key);
    auto thens = waiting_.extract(key), others = after_.extract(key);
    for (Way* way : {&out_, &in_}) {
      if (Ready(*way) || closing_) way->changed.notify_one();
    }
    ended_.notify_all();
    lock.unlock();
    for (auto* node : {&thens, &others}) {
      if (node->empty()) continue;
      for (const Then& then : node->mapped()) then(done.failure);
    }
    lock.lock();
  }

  const FileSettings settings_;
  const std::shared_ptr<Copiers> copiers_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool closing_ = false;
  bool pages_go_ = false;  // MAPPED-2: pages were dropped, in this step or the one before
  bool fetched_ = false;
  Failure failed_;
  std::map<int64_t, Slot> slots_;
  std::set<Key> under_way_;
  std::map<Key, Failure> failures_;  // until it is asked for anew
  std::map<Key, Owner> owners_;
  std::map<Key, std::vector<Then>> waiting_, after_;  // the step, and what this lane goes on with
  Counters counters_;
  Way out_, in_;
};

}  // namespace

std::shared_ptr<FileLane> MakeFileLane(const FileSettings& settings) { return std::make_shared<Files>(settings); }

}  // namespace lms3d
