// Files in a folder, one for each slot: see lanes.h and swap_file.h.
//
// MAPPED-1  The place of a slot is known before it is written (`Place`): reading in place passes it on.
// MAPPED-2  It fetches first if the swap-out found that the file was new or had lost pages, and in the step after one in which
//           pages were dropped or a transfer failed. Such a step reads dropped pages as one that copies them back does.
// MAPPED-3  Else nobody looks. Pages that go all the same come back by themselves, which FILE-3 notices: the step is an error if
//           they came back wrong. But a disk that cannot be read at that moment ends the process with a signal.
#ifndef LMS3D_FILE_LANE_H_
#define LMS3D_FILE_LANE_H_

#include <memory>

#include "lanes.h"
#include "swap_file.h"

namespace lms3d {

class FileLane : public Lane {
 public:
  // Before a step: earlier failures do not explain what fails now.
  virtual void Begin() = 0;
  // What failed first since then.
  virtual Failure Failed() = 0;
  // After a function: what of its bytes the disk has failed to keep. waited: the process has waited for a page of a map
  // meanwhile. Only then is the disk asked (FILE-3), and the next step looks (MAPPED-2).
  virtual Failure Check(bool waited) = 0;
  // For who moves bytes without a step; null if there is no such slot.
  virtual std::shared_ptr<SwapFile> File(int64_t slot) = 0;
};

std::shared_ptr<FileLane> MakeFileLane(const FileSettings& settings);

}  // namespace lms3d

#endif  // LMS3D_FILE_LANE_H_
