// Kernels of the project's own on a GPU: compiled when they are first launched, by CUDA's run-time compiler, for the GPU at hand.
#pragma once

#include <memory>
#include <string>

#include "lanes.h"

namespace lms3d {

class GpuKernels {
 public:
  virtual ~GpuKernels() = default;

  // Enqueues a kernel of normalise_kernels.inc. arguments: addresses of its parameters. Returns an empty text, or why it could not.
  virtual Failure Launch(Stream stream, const std::string& kernel, int64_t blocks, unsigned threads, unsigned shared_bytes,
                         void** arguments) = 0;
};

// Makes kernels with these two libraries from now on: CUDA's driver and its run-time compiler. Returns an empty text, or why it
// cannot.
Failure UseGpuKernels(const std::string& driver, const std::string& compiler);

// The kernels; nullptr before `UseGpuKernels`.
std::shared_ptr<GpuKernels> TheGpuKernels();

}  // namespace lms3d
