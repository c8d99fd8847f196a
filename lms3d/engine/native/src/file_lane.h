// Files in a folder, one for each slot: see lanes.h and swap_file.h.
//
// MAPPED-1  The place of a slot is known before it is written (`Place`). Reading in place passes it on.
// MAPPED-2  Reading in place first brings dropped pages back, by calls that can report an error: if the swap-out found that the
//           file was new or had lost pages, and in the step after one in which pages were dropped or a transfer failed.
// MAPPED-3  Otherwise nobody looks. Pages that are dropped all the same come back by themselves, which FILE-3 notices: the step is
//           an error if they came back wrong. But if the disk cannot be read at that moment, a signal ends the process.
#ifndef LMS3D_FILE_LANE_H_
#define LMS3D_FILE_LANE_H_

#include <memory>

#include "lanes.h"
#include "swap_file.h"

namespace lms3d {

class FileLane : public Lane {
 public:
  // Called before a step: forgets earlier failures.
  virtual void Begin() = 0;
  // The first failure since then.
  virtual Failure Failed() = 0;
  // Called after a function: the failure if the disk has not kept its bytes. waited: the process has waited for a page of a map
  // meanwhile. Only then is the disk asked (FILE-3), and the next step looks at its pages (MAPPED-2).
  virtual Failure Check(bool waited) = 0;
  // The file of a slot, to move bytes without a step; null if there is no such slot.
  virtual std::shared_ptr<SwapFile> File(int64_t slot) = 0;
};

std::shared_ptr<FileLane> MakeFileLane(const FileSettings& settings);

}  // namespace lms3d

#endif  // LMS3D_FILE_LANE_H_
