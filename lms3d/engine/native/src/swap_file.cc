#include "swap_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "system.h"

namespace lms3d {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr char kEnded[] = "the swap file ended too early";

[[noreturn]] void Fail() { throw std::runtime_error(std::strerror(errno)); }

// A file that is open for a block alone: a step may have more swapped tensors than a process may have open files.
class Opened {
 public:
  explicit Opened(const std::string& path, int flags = O_RDWR) : file(open(path.c_str(), flags | O_CLOEXEC, 0600)) {
    if (file < 0) Fail();
  }
  ~Opened() { close(file); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  const int file;
};

// Repeats a call that may move less than it was asked to: `move(at)` returns the bytes that it moved.
template <class Move>
void Whole(size_t bytes, Move move) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t moved = move(done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) Fail();
    if (moved == 0) throw std::runtime_error(kEnded);
    done += moved;
  }
}

}  // namespace

// Addresses, without memory behind them until a file is mapped there. They begin where a huge page may: the system then maps a
// file in few pieces, and the first writes take a sixth of the time.
class SwapFile::Addresses {
 public:
  explicit Addresses(size_t bytes) : bytes_(bytes), room_(bytes + kHugePage) {
    begin_ = TheSystem().mmap(nullptr, room_, kReadWrite, kNothing, -1, 0);
    if (begin_ == MAP_FAILED) Fail();
    const auto number = reinterpret_cast<uintptr_t>(begin_);
    first = reinterpret_cast<void*>((number + kHugePage - 1) / kHugePage * kHugePage);
  }
  ~Addresses() { munmap(begin_, room_); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  // False if the system does not map it.
  bool Map(int file) {
    if (TheSystem().mmap(first, bytes_, kReadWrite, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED) return true;
    MapNothing();  // what was there may be gone
    return false;
  }

  // Maps zeros, which can be read: an operation of a step that has failed may still be at work there.
  void MapNothing() { TheSystem().mmap(first, bytes_, kReadWrite, kNothing | MAP_FIXED, -1, 0); }

  void* first;

 private:
  const size_t bytes_, room_;
  void* begin_;
};

SwapFile::SwapFile(std::string path, size_t bytes, const FileSettings& settings, std::shared_ptr<Copiers> copiers)
    : path_(std::move(path)),
      bytes_(bytes),
      settings_(settings),
      copiers_(std::move(copiers)),
      addresses_(std::make_shared<Addresses>(bytes)) {}

SwapFile::~SwapFile() { RemoveLocked(); }

bool SwapFile::Write(const void* from) {
  std::lock_guard<std::mutex> lock(mutex_);
  written_ = true;
  const bool there = InMemory();
  if (there && bytes_ >= settings_.least_mapped_bytes) {
    copiers_->Copy(addresses_->first, from, bytes_);
    return true;
  }
  const Opened opened(path_, O_RDWR | O_CREAT);
  Hold(opened.file);
  const auto* bytes = static_cast<const char*>(from);
  Whole(bytes_, [&](size_t at) { return TheSystem().pwrite(opened.file, bytes + at, bytes_ - at, at); });
  return there;
}

void SwapFile::Read(void* to) {
  std::lock_guard<std::mutex> lock(mutex_);
  CheckEnd();
  if (InMemory()) {
    copiers_->Copy(to, addresses_->first, bytes_);
    return;
  }
  const bool there = mapped_ && Resident();  // RWF_NOWAIT does not tell: it begins to read by itself
  if (!there) SyncLocked();
  const Opened opened(path_);
  const long before = TheSystem().blocks_read();
  auto* bytes = static_cast<char*>(to);
  Whole(bytes_, [&](size_t at) { return TheSystem().pread(opened.file, bytes + at, bytes_ - at, at); });
  if (there && TheSystem().blocks_read() != before) SyncLocked();  // FILE-3
}

size_t SwapFile::Fetch() {
  std::lock_guard<std::mutex> lock(mutex_);
  CheckEnd();
  if (!bytes_) return 0;
  if (!mapped_) throw std::runtime_error("the swap file cannot be mapped");
  if (Resident()) return 0;
  SyncLocked();
  std::vector<char> piece(std::min(bytes_, settings_.part_bytes));
  const Opened opened(path_);
  Whole(bytes_, [&](size_t at) {
    return TheSystem().pread(opened.file, piece.data(), std::min(piece.size(), bytes_ - at), at);
  });
  return bytes_;
}

void SwapFile::Sync() {
  std::lock_guard<std::mutex> lock(mutex_);
  SyncLocked();
}

void SwapFile::SyncLocked() {
  int failed = 0;
  if (held_ >= 0) {
    failed = TheSystem().fdatasync(held_);
  } else if (mapped_) {
    failed = TheSystem().msync(addresses_->first, bytes_, MS_SYNC);
  }
  if (!failed) return;
  const int number = errno;
  RemoveLocked();  // FILE-4
  errno = number;
  Fail();
}

void SwapFile::Remove() {
  std::lock_guard<std::mutex> lock(mutex_);
  RemoveLocked();
}

void SwapFile::RemoveLocked() {
  if (std::exchange(mapped_, false)) addresses_->MapNothing();
  if (held_ >= 0) close(std::exchange(held_, -1));
  unlink(path_.c_str());
}

Place SwapFile::place() const { return {addresses_->first, addresses_}; }

// Holds the file before the first write (FILE-1).
void SwapFile::Hold(int file) {
  if (mapped_ || held_ >= 0 || !bytes_) return;
  mapped_ = addresses_->Map(file);
  if (!mapped_) held_ = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (!mapped_ && held_ < 0) Fail();
}

// Missing bytes would read as zeros, or end the process.
void SwapFile::CheckEnd() const {
  struct stat found;
  if (stat(path_.c_str(), &found)) Fail();
  if (written_ && static_cast<size_t>(found.st_size) < bytes_) throw std::runtime_error(kEnded);
}

bool SwapFile::Resident() const {
  const size_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> pages((bytes_ + page - 1) / page);
  if (TheSystem().mincore(addresses_->first, bytes_, pages.data())) return false;
  return std::all_of(pages.begin(), pages.end(), [](unsigned char one) { return one & 1; });
}

}  // namespace lms3d
