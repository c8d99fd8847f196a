// A link to another part of this process's memory, emulated at a stated rate: see lanes.h.
//
// LINK-1  A booking begins when it was asked for, or when the booking before ends, whichever is later. So in any busy stretch
//         bytes and seconds keep the link's rate, and delays of a loaded machine do not add up. A copy in that was asked for before
//         the slot was written counts as asked for when it was written.
// LINK-2  A transfer has ended when its bookings have ended and its bytes are copied, whichever is later.
// LINK-3  It is booked and copied in pieces: if two processes share a bus, each gets every other piece. The copying is spread over
//         the transfer, too, like that of a device.
// LINK-4  A copy goes past the processor's caches, like that of a device.
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "lanes.h"
#include "mutations.h"

namespace lms3d {
namespace {

constexpr size_t kPiece = 4 << 20;  // smaller: a finer division of a bus, more calls

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}
double Now() { return Seconds(CLOCK_MONOTONIC); }

// Copies past the caches (LINK-4); the tail, and bytes that are not aligned, by memcpy.
void CopyPast(void* to, const void* from, size_t bytes) {
  if (!bytes) return;  // then the addresses may be null, which memcpy forbids
#if defined(__x86_64__)
  if (reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    auto* target = static_cast<__m128i*>(to);
    auto* source = static_cast<const __m128i*>(from);
    const size_t quads = bytes / 64;
    for (size_t i = 0; i < quads; ++i, target += 4, source += 4) {
      const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();
    std::memcpy(target, source, bytes % 64);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

// The moment at which one direction of a link is free (LINK-1), by CLOCK_MONOTONIC, which all processes share.
class Calendar {
 public:
  // path: a file that holds the moment for a shared link; empty for a link of this lane alone.
  explicit Calendar(const std::string& path) {
    if (path.empty()) return;
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0) throw std::runtime_error("cannot open the bus " + path + ": " + std::strerror(errno));
  }
  ~Calendar() {
    if (file_ >= 0) close(file_);
  }
  Calendar(const Calendar&) = delete;
  Calendar& operator=(const Calendar&) = delete;

  // Books the next `seconds` from `asked` on; returns the moment at which they end.
  double Book(double asked, double seconds) {
    if (file_ < 0) return free_ = std::max(asked, free_) + seconds;
    // A process that ends delays nobody: the lock is held while a booking is written, not while bytes move. It belongs to the open
    // file, not to the process, which may have several lanes on this bus.
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    while (fcntl(file_, F_OFD_SETLKW, &lock) && errno == EINTR) continue;
    double free = 0;
    if (pread(file_, &free, sizeof free, 0) != sizeof free) free = 0;
    const double end = std::max(asked, free) + seconds;
    const bool written = pwrite(file_, &end, sizeof end, 0) == sizeof end;
    lock.l_type = F_UNLCK;
    fcntl(file_, F_OFD_SETLK, &lock);
    return written ? end : asked + seconds;
  }

 private:
  int file_ = -1;
  double free_ = 0;
};

using Then = std::function<void(const Failure&)>;
using Key = std::pair<int64_t, int64_t>;  // slot, copy

struct Block {  // memory of a slot, its pages there from the start: they would make the first step late
  explicit Block(size_t bytes) : bytes(bytes) {
    if (!bytes) return;
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (address == MAP_FAILED) throw std::runtime_error(std::strerror(errno));
  }
  ~Block() {
    if (bytes) munmap(address, bytes);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* address = nullptr;
  size_t bytes = 0;
  double written = 0;  // when its last copy out ended
};

// A copy that was asked for. It has ended once `under_way` lacks its key.
struct Transfer {
  Key key;
  void* to;
  const void* from;
  size_t bytes;
  double asked;
  std::shared_ptr<Block> block;  // stays while it is copied, whoever drops the slot
};

class Emulated : public Lane {
 public:
  Emulated(double out_rate, double in_rate, double latency, const std::string& bus)
      : ways_{Way(out_rate, latency, bus.empty() ? bus : bus + "/out"), Way(in_rate, latency, bus.empty() ? bus : bus + "/back")} {
    try {
      for (Way& way : ways_) way.thread = std::thread([this, &way] { Run(way); });
    } catch (...) {  // the system has no more threads
      End();
      throw;
    }
  }

  ~Emulated() override { End(); }

  Failure Reserve(int64_t slot, size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return Place(slot, bytes);
  }

  Failure CopyOut(int64_t slot, const void* from, size_t bytes, Stream, Owner source, const Pin&) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (Failure failure = Place(slot, bytes); !failure.empty()) return failure;
    const auto& block = blocks_[slot];
    Submit(ways_[0], {{slot, kOut}, block->address, from, bytes, Now(), block}, std::move(source));
    return {};
  }

  Failure CopyIn(int64_t slot, int64_t copy, void* to, size_t bytes, Stream, Owner target) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(slot);
    if (found == blocks_.end() || found->second->bytes != bytes) return "the slot does not hold such a tensor";
    const auto& block = found->second;
    Submit(ways_[1], {{slot, copy}, to, block->address, bytes, Now(), block}, std::move(target));
    return {};
  }

  void Wait(int64_t slot, int64_t copy, Stream, Then then) override {
    Owner let_go;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const Key key{slot, copy};
      const bool skipped = copy == kOut ? kHoldDoesNotWait : kArriveDoesNotWait;
      if (under_way_.count(key) && !skipped) {
        waiting_[key].push_back(std::move(then));
        return;
      }
      let_go = Release(key);
    }
    let_go.reset();
    then({});
  }

  Failure Settle() override {
    std::map<Key, Owner> let_go;
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return under_way_.empty(); });
    let_go.swap(owners_);
    lock.unlock();
    return {};
  }

  void Drop(int64_t slot) override {
    std::shared_ptr<Block> let_go;
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this, slot] {
      const auto first = under_way_.lower_bound({slot, kOut});
      return first == under_way_.end() || first->first != slot;
    });
    if (const auto found = blocks_.find(slot); found != blocks_.end()) {
      let_go = std::move(found->second);
      blocks_.erase(found);
    }
    lock.unlock();
  }

  Counters Take() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(counters_, Counters());
  }

 private:
  struct Way {
    Way(double rate, double latency, const std::string& bus) : rate(rate), latency(latency), calendar(bus) {}
    double rate, latency;
    Calendar calendar;  // of the way's thread
    std::deque<Transfer> queue;
    double last_end = 0;
    std::thread thread;
  };

  void End() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (Way& way : ways_) {
      if (way.thread.joinable()) way.thread.join();
    }
  }

  Failure Place(int64_t slot, size_t bytes) {
    auto& block = blocks_[slot];
    if (block && block->bytes == bytes) return {};
    try {
      block = std::make_shared<Block>(bytes);
    } catch (const std::exception& error) {
      blocks_.erase(slot);
      return "no memory for " + std::to_string(bytes) + " bytes that are swapped out: " + error.what();
    }
    return {};
  }

  void Submit(Way& way, Transfer transfer, Owner owner) {
    under_way_.insert(transfer.key);
    owners_[transfer.key] = std::move(owner);
    way.queue.push_back(std::move(transfer));
    changed_.notify_all();
  }

  Owner Release(const Key& key) {
    const auto found = owners_.find(key);
    if (found == owners_.end()) return {};
    Owner owner = std::move(found->second);
    owners_.erase(found);
    return owner;
  }

  // LANE-2: the slot has been written. No later copy may overtake.
  bool Ready(const Transfer& transfer) const {
    return transfer.key.second == kOut || kFetchDoesNotWaitForOut || !under_way_.count({transfer.key.first, kOut});
  }

  void Run(Way& way) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closing_ || (!way.queue.empty() && Ready(way.queue.front())); });
      if (way.queue.empty()) return;  // closing; what was asked for still ends
      if (!Ready(way.queue.front())) {
        ended_.wait(lock, [&] { return Ready(way.queue.front()); });
      }
      Transfer transfer = std::move(way.queue.front());
      way.queue.pop_front();
      if (transfer.key.second != kOut) transfer.asked = std::max(transfer.asked, transfer.block->written);
      lock.unlock();
      const double processor = Move(way, transfer);
      lock.lock();
      Ended(way, transfer, processor, lock);
    }
  }

  // Returns the processor seconds of the copy.
  static double Move(Way& way, const Transfer& transfer) {
    const double began = Seconds(CLOCK_THREAD_CPUTIME_ID);
    size_t at = 0;
    do {
      const size_t piece = std::min(kPiece, transfer.bytes - at);
      const double seconds = (way.rate > 0 ? piece / way.rate : 0) + (at ? 0 : way.latency);
      const double end = way.calendar.Book(transfer.asked, seconds);
      CopyPast(static_cast<char*>(transfer.to) + at, static_cast<const char*>(transfer.from) + at, piece);
      at += piece;
      if (const double left = end - Now(); left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
    } while (at < transfer.bytes);
    return Seconds(CLOCK_THREAD_CPUTIME_ID) - began;
  }

  void Ended(Way& way, Transfer& transfer, double processor, std::unique_lock<std::mutex>& lock) {
    const bool out = transfer.key.second == kOut;
    const double now = Now(), busy = now - std::max(transfer.asked, std::exchange(way.last_end, now));
    (out ? counters_.out_bytes : counters_.in_bytes) += transfer.bytes;
    (out ? counters_.out_seconds : counters_.in_seconds) += busy;
    counters_.processor_seconds += processor;
    if (out) transfer.block->written = now;
    transfer.block.reset();
    std::vector<Then> thens;
    if (const auto found = waiting_.find(transfer.key); found != waiting_.end()) {
      thens = std::move(found->second);
      waiting_.erase(found);
      Release(transfer.key);  // the memory is free before anybody hears of it, Settle too
    }
    under_way_.erase(transfer.key);
    changed_.notify_all();
    ended_.notify_all();
    lock.unlock();
    for (const Then& then : thens) then({});
    lock.lock();
  }

  std::mutex mutex_;
  std::condition_variable changed_, ended_;
  bool closing_ = false;
  std::unordered_map<int64_t, std::shared_ptr<Block>> blocks_;
  std::set<Key> under_way_;
  std::map<Key, Owner> owners_;
  std::map<Key, std::vector<Then>> waiting_;
  Counters counters_;
  std::array<Way, 2> ways_;
};

}  // namespace

std::shared_ptr<Lane> MemoryLane(double out_rate, double in_rate, double latency_seconds, const std::string& bus) {
  return std::make_shared<Emulated>(out_rate, in_rate, latency_seconds, bus);
}

}  // namespace lms3d
