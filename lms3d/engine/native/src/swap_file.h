// One swapped tensor on the disk: a file that is written whole and read whole, again and again.
//
//   first write        pwrite            allocates the blocks: a full disk fails here, with an error and no signal
//   later transfers    memory map        while the page cache holds the file: one plain copy, by several cores. Only on file
//                                        systems that rewrite a block in place: elsewhere a full disk, or a lost server,
//                                        would end the process with a signal
//                      pwrite, pread     after the system has dropped pages
//   reading in place   memory map        at `place`: no copy and no call at all
//
// A system call copies at half the speed of a plain copy (measured: 9 and 6 against 14 GB/s), and a core that copies does not
// compute. But writing through a map to a dropped page would read it from the disk first, and reading would fetch it in small
// pieces: hence the look at the page table (`mincore`, 3 us for 1 MB).
//
// The system writes back later. If that fails (a thin disk is full, a disk is broken), it drops the pages all the same, and a read
// gives zeros, or older bytes, and no error. So:
//
// FILE-1  A file is held from before its first write, by its map, or by a descriptor if it cannot be mapped. The system reports
//         an error once to each file that was open before it, and forgets it with the last page of a file that nobody holds.
// FILE-2  Dropped bytes are not read before an fsync of the held file (`Sync`) has said that all of them are on the disk. Nothing
//         less will do: sync_file_range misses blocks that ext4 has written and failed to enter, and everything on an overlay.
// FILE-3  Pages can be dropped, and come back wrong, while they are read. If a system call read blocks meanwhile, `Sync` follows
//         it. Otherwise the process waited for a page (a major fault), and `FileLane::Check` syncs after such a function.
// FILE-4  A file that has failed is removed: later reads of its bytes fail, and the next write makes a new one, at the same place.
// FILE-5  Its bytes lie at one address for as long as anybody refers to it, mapped or not. Whoever reads at that address without a
//         call finds the bytes of the present file, and zeros after the last file is removed.
#ifndef LMS3D_SWAP_FILE_H_
#define LMS3D_SWAP_FILE_H_

#include <memory>
#include <mutex>
#include <string>

#include "copiers.h"
#include "lanes.h"

namespace lms3d {

struct FileSettings {
  std::string folder;
  bool in_place = false;         // the file system rewrites blocks in place
  size_t part_bytes = 1;         // see copiers.h
  size_t most_parts = 1;
  size_t least_mapped_bytes = 0;  // smaller files are written by a system call
};

// Every method throws std::runtime_error with the system's message if the disk fails, is full, or has lost bytes.
class SwapFile {
 public:
  SwapFile(std::string path, size_t bytes, const FileSettings& settings, std::shared_ptr<Copiers> copiers);
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  // Writes the bytes. True if the page cache held the whole file already. False if the file is new, or if it lost pages since the
  // last write: then it may again.
  bool Write(const void* from);
  // Reads the bytes that were written last.
  void Read(void* to);
  // Called before the bytes are read in place: brings dropped pages back into the page cache, and returns how many bytes were read.
  // It makes a call that can report an error: touching a map whose disk fails ends the process with a signal.
  size_t Fetch();
  // FILE-2: throws if not all bytes that were written last are on the disk.
  void Sync();
  void Remove();

  Place place() const;
  size_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  class Addresses;

  void SyncLocked();
  void RemoveLocked();
  void Hold(int file);
  void CheckEnd() const;
  bool Resident() const;
  bool InMemory() const { return settings_.in_place && mapped_ && Resident(); }

  const std::string path_;
  const size_t bytes_;
  const FileSettings settings_;
  const std::shared_ptr<Copiers> copiers_;
  const std::shared_ptr<Addresses> addresses_;  // FILE-5
  mutable std::mutex mutex_;
  bool mapped_ = false;    // at the addresses
  int held_ = -1;          // the descriptor, in place of a map
  bool written_ = false;
};

}  // namespace lms3d

#endif  // LMS3D_SWAP_FILE_H_
