// How the operations of normalise.cc are launched on a GPU. Addresses are of the device.
#pragma once

#include <cstdint>
#include <string>

#include "gpu_kernels.h"

namespace lms3d {

// The same as in the kernels (normalise_kernels.inc).
struct GpuShape {
  int64_t planes;
  int depth, voxels, channels, strips, chunk, pivot;
};
struct GpuParameters {
  const double *mean, *rsigma;
  const float *gamma, *beta, *multipliers;
  float slope;
};

// Launches for a volume (samples, depth, rows, width, channels) whose elements have `bytes` each and are called `type` in kernels'
// names. wide: whether all its tensors begin at an address at which four elements may be read at a time.
class GpuVolume {
 public:
  GpuVolume(GpuKernels& kernels, Stream stream, std::string type, int64_t samples, int64_t depth, int64_t rows, int64_t width,
            int64_t channels, bool wide);

  // Numbers that `Moments` and `ActivateSums` need beside their results.
  int64_t scratch() const { return shape_.planes * shape_.strips * 2 * shape_.channels; }

  Failure Moments(const void* x, float* scratch, double* means, double* variances);
  Failure Activate(const void* x, const void* addend, void* y, GpuParameters of);
  Failure ActivateSums(const void* dy, const void* x, float* scratch, GpuParameters of, double* of_dz, double* of_both);
  // sums: those of `SampleSums`. voxels: the number in a sample; this volume may be a part of it.
  Failure ActivateGrad(const void* dy, const void* x, void* dx, const double* sums, double voxels, GpuParameters of);

 private:
  std::string Name(const char* kernel) const;
  template <class... Arguments>
  Failure EachStrip(const char* kernel, bool sums, Arguments... arguments);

  GpuKernels& kernels_;
  const Stream stream_;
  const std::string type_;
  GpuShape shape_;
  int together_;  // elements that a thread reads at a time
};

Failure GpuMerge(GpuKernels& kernels, Stream stream, const double* means, const double* variances, double epsilon, double* mean,
                 double* rsigma, int samples, int depth, int channels);
// sums: (samples, 2, channels).
Failure GpuSampleSums(GpuKernels& kernels, Stream stream, const double* of_dz, const double* of_both, double* sums, int samples,
                      int depth, int channels);
Failure GpuParameterGrad(GpuKernels& kernels, Stream stream, const double* of_dz, const double* of_both, const double* rsigma,
                         const float* multipliers, float* d_gamma, float* d_beta, int samples, int depth, int channels);

}  // namespace lms3d
